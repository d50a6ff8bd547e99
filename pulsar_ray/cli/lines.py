"""Lines of text and the keys in them."""

from __future__ import annotations

import re
from collections.abc import Callable

import click

KeyOf = Callable[[bytes], tuple[str | None, bytes]]
"""From a line to its key, if it has one, and the value to send."""


def key_rule(regex: str | None, separator: str | None) -> KeyOf:
    """Take keys out of lines.

    Raises UsageError for a bad expression, or both rules at once.
    """
    if regex is not None and separator is not None:
        raise click.UsageError("give --key-regex or --key-separator, not both")
    if separator is not None:
        return _by_separator(separator.encode())
    if regex is not None:
        try:
            return _by_regex(re.compile(regex.encode()))
        except re.error as error:
            raise click.UsageError(f"--key-regex {regex!r} is no regular expression: {error}") from None
    return _without_key


def _without_key(line: bytes) -> tuple[str | None, bytes]:
    return None, line


def _by_separator(separator: bytes) -> KeyOf:
    def split(line: bytes) -> tuple[str | None, bytes]:
        key, found, value = line.partition(separator)
        return (_text(key), value) if found else (None, line)

    return split


def _by_regex(pattern: re.Pattern[bytes]) -> KeyOf:
    def search(line: bytes) -> tuple[str | None, bytes]:
        match = pattern.search(line)
        if match is None:
            return None, line
        # A group that took no part in the match is None.
        return _text(match[1] if pattern.groups else match[0]), line

    return search


def _text(key: bytes | None) -> str | None:
    return key.decode("utf-8", "replace") if key else None


def without_newline(line: bytes) -> bytes:
    """The line without the newline, or carriage return and newline, at its end."""
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(b"\n") else line
