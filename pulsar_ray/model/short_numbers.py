"""Writes numbers in a few characters, for tables that people read."""

from __future__ import annotations


def count(number: float | None) -> str:
    """A number in at most seven characters."""
    if number is None:
        return "-"
    if abs(number) < 10 and number != int(number):
        return f"{number:.1f}"
    if abs(number) < 100_000:
        return f"{number:.0f}"
    for unit in "kMG":
        number /= 1000
        if abs(number) < 1000:
            return f"{number:.1f}{unit}"
    return f"{number / 1000:.0f}T"


def size(number: float | None) -> str:
    """Bytes in at most six characters."""
    if number is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 1000:
            return f"{number:.0f}{unit}" if unit == "B" or number >= 10 else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.0f}TB"


def age(seconds: float | None) -> str:
    """A time span in at most four characters."""
    if seconds is None or seconds < 0:
        return "-"
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{min(seconds // length, 999):.0f}{unit}"
    return f"{seconds:.0f}s"
