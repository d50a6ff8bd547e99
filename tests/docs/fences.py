"""The fenced blocks of a Markdown file, and what they say they print."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^\s*print\(.*\)  # (?P<line>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is where its text begins in the file."""

    language: str
    text: str
    line: int

    @property
    def printed(self) -> list[str]:
        """The lines a Python block prints, from the comments behind its print calls."""
        return [match["line"] for match in _PRINTED.finditer(self.text)]

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of a console block, each with the lines it prints."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
        return found


def blocks_of(path: Path) -> list[Block]:
    """Every fenced block of a file, in order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], text.count("\n", 0, match.start("text")) + 1)
        for match in _FENCE.finditer(text)
    ]


def is_printed(wanted: list[str], printed: list[str]) -> bool:
    """Whether the lines are the same; `...` in a wanted line stands for any text, alone for any lines."""
    if not wanted:
        return not printed
    if wanted[0].strip() == "...":
        return any(is_printed(wanted[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and _is_line(wanted[0], printed[0]) and is_printed(wanted[1:], printed[1:])


def _is_line(wanted: str, printed: str) -> bool:
    pattern = "".join(f"[{c}]" if c in "[]*?" else c for c in wanted.rstrip()).replace("...", "*")
    return fnmatchcase(printed.rstrip(), pattern)
