"""Comparing the three counts, and the table that shows them."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from pulsar_ray_spark.demo.text import Tally

_SHOWN = 8


def differences(
    files: Mapping[str, Tally], consumed: Mapping[str, Tally], spark: Mapping[str, Tally]
) -> list[str]:
    """Name each difference, a line for each module and side.

    Empty if all is well.
    """
    found = []
    for module in sorted(files.keys() | consumed.keys() | spark.keys()):
        of_file = files.get(module, Tally())
        of_consumer = consumed.get(module, Tally())
        of_spark = spark.get(module, Tally())
        if of_consumer.lines != of_file.lines:
            found.append(
                f"{module}: {of_file.lines} lines in the file, consumers counted {of_consumer.lines}"
            )
        elif of_consumer.text_crc != of_file.text_crc:
            found.append(f"{module}: consumers got its lines out of order, or changed")
        if of_spark.lines != of_file.lines:
            found.append(f"{module}: {of_file.lines} lines in the file, Spark counted {of_spark.lines}")
        elif of_spark.line_crcs != of_file.line_crcs:
            found.append(f"{module}: Spark got changed lines")
    return found


def count_differences(files: Mapping[str, Tally], written: Mapping[str, int]) -> list[str]:
    """Name each module whose count that was written back is wrong."""
    of_files = {module: tally.lines for module, tally in files.items() if tally.lines}
    return [
        f"{module}: {of_files.get(module, 0)} lines in the file, {written.get(module, 0)} written back"
        for module in sorted(of_files.keys() | written.keys())
        if of_files.get(module, 0) != written.get(module, 0)
    ]


def table(files: Mapping[str, Tally], consumed: Mapping[str, Tally], spark: Mapping[str, Tally]) -> Table:
    """The modules with the most lines, and the sums."""
    shown = Table("module", "file", "consumers", "Spark", title="lines by module")
    for column in shown.columns[1:]:
        column.justify = "right"
    largest = sorted(files, key=lambda module: (-files[module].lines, module))
    for module in largest[:_SHOWN]:
        counts = (side.get(module, Tally()).lines for side in (files, consumed, spark))
        shown.add_row(module, *(f"{count:,}" for count in counts))
    if len(largest) > _SHOWN:
        shown.add_row(f"... {len(largest) - _SHOWN:,} more", "", "", "")
    shown.add_section()
    sums = (sum(tally.lines for tally in side.values()) for side in (files, consumed, spark))
    shown.add_row("all", *(f"{count:,}" for count in sums))
    return shown
