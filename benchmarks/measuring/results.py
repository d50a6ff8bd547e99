"""Rows of the result table, and how they are printed and kept."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MARKER = "<!-- What follows is written by `python -m benchmarks --markdown`. -->"


@dataclass(frozen=True)
class Row:
    """One figure against its floor. `ratio` is ours over the floor, or what `limit` speaks of.

    Without `limit` it is only reported. `at_most` says whether the limit is a ceiling.
    """

    what: str
    ours: str
    floor: str = ""
    ratio: float | None = None
    limit: float | None = None
    at_most: bool = False
    cpu_us: dict[str, float] = field(default_factory=dict)
    """Microseconds of CPU per message, by process."""
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        """None if there is nothing to reach."""
        if self.limit is None or self.ratio is None:
            return None
        return self.ratio <= self.limit if self.at_most else self.ratio >= self.limit

    @property
    def must(self) -> str:
        """The bound of the ratio."""
        if self.limit is None:
            return "reported"
        return f"{'<=' if self.at_most else '>='} {self.limit:g}"


@dataclass
class Report:
    """All rows of a run by group, with what describes the machine at that time."""

    machine: dict[str, Any]
    groups: dict[str, list[Row]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything, for comparing runs."""
        groups = {
            name: [{**asdict(row), "must": row.must, "reached": row.is_reached} for row in rows]
            for name, rows in self.groups.items()
        }
        return {"machine": self.machine, "groups": groups, "skipped": self.skipped}

    def write_json(self, path: Path) -> None:
        """Keep it in a file."""
        path.write_text(json.dumps(self.as_json(), indent=2) + "\n")

    def write_markdown(self, path: Path) -> None:
        """Replace what follows the marker in a document by the tables."""
        before, marker, _ = path.read_text().partition(MARKER)
        if not marker:
            raise ValueError(f"{path} has no line {MARKER}")
        path.write_text("\n".join([before + marker, "", *self._markdown(), ""]))

    def _markdown(self) -> list[str]:
        lines = [f"- {name}: {value}" for name, value in self.machine.items()]
        for name, rows in self.groups.items():
            lines += [
                "",
                f"### {name}",
                "",
                "| " + " | ".join(_HEADINGS) + " |",
                "|" + "---|" * len(_HEADINGS),
            ]
            lines += ["| " + " | ".join(_cells(row)) + " |" for row in rows]
        lines += ["", *(f"{name}: not run, {reason}." for name, reason in self.skipped.items())]
        return lines

    def print_group(self, console: Console, name: str) -> None:
        """One group's table."""
        table = Table(*_HEADINGS, title=name, title_justify="left")
        for row in self.groups[name]:
            table.add_row(*_cells(row))
        console.print(table)


_HEADINGS = ("what", "ours", "floor", "ratio", "must reach", "reached", "CPU us/message", "note")


def _cells(row: Row) -> list[str]:
    reached = {True: "yes", False: "NO", None: ""}[row.is_reached]
    cpu = ", ".join(f"{name} {value:.2f}" for name, value in row.cpu_us.items())
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return [row.what, row.ours, row.floor, ratio, row.must, reached, cpu, row.note]
