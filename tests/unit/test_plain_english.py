"""Docstrings and comments read as plain sentences, as far as a machine can tell."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(
    path for room in ("pulsar_ray", "spark", "examples") for path in (ROOT / room).rglob("*.py")
)
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
MAX_WORDS_OF_A_FIRST_LINE = 15
RIDDLE = re.compile(r"(?:^|[.!?]\s+)((?:What|Who|Whoever|How much of)\b[^.]{0,40})")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, also of those below attributes."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value.strip()


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment; lines of comment that follow each other are one."""
    begun, text, previous = 0, "", -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, words = token.start[0], token.string.lstrip("# ")
        if line == previous + 1:
            text += " " + words
        else:
            if text:
                yield begun, text
            begun, text = line, words
        previous = line
    if text:
        yield begun, text


def riddles(source: str) -> list[str]:
    """Sentences that begin with a word for something that is not named."""
    found = []
    for line, text in (*docstrings(source), *comments(source)):
        found += [f"{line}: {match[1]}" for match in RIDDLE.finditer(" ".join(text.split()))]
    return found


def long_first_lines(source: str) -> list[str]:
    """First lines of docstrings of more words than a reader takes in at once."""
    firsts = ((line, text.partition("\n")[0]) for line, text in docstrings(source))
    return [f"{line}: {first}" for line, first in firsts if len(first.split()) > MAX_WORDS_OF_A_FIRST_LINE]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def found_in(paths: list[Path], rule: Callable[[str], list[str]]) -> dict[str, list[str]]:
    """What a rule finds, by file. A test of its own for each file would cost more than the rule."""
    found = {relative(path): rule(path.read_text()) for path in paths}
    return {path: lines for path, lines in found.items() if lines}


def test_no_sentence_begins_with_an_unnamed_thing() -> None:
    assert found_in([*PACKAGES, *BENCHMARKS], riddles) == {}


def test_first_lines_are_short() -> None:
    assert found_in(PACKAGES, long_first_lines) == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Send receipts."""', 0),
        ('"""What is sent."""', 1),
        ('"""Send it.\n\nWhoever waits is told."""', 1),
        ('x = 1\n"""What x is."""', 1),
        ("x = 1  # Who knows", 1),
        ("# Send what is there.\n# Nobody waits. Who does, is\n# told.", 1),
        ("# 'What' in the middle, and Who too", 0),
    ],
)
def test_what_counts_as_one(source: str, count: int) -> None:
    assert len(riddles(source)) == count


def test_a_first_line_of_16_words_is_too_long() -> None:
    line = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    assert long_first_lines(f'"""{line}"""') == []
    assert len(long_first_lines(f'"""{line} sixteen"""')) == 1
