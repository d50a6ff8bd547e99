from __future__ import annotations

import re
import subprocess
import sys
from codeop import compile_command
from importlib.util import find_spec
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import pytest
import yaml

from tests.docs.fences import Block, blocks_of, is_printed
from tests.docs.new_user import ROOT, new_environment
from tests.docs.settings_table import reserved_names, settings_rows

README = ROOT / "README.md"
RUN = ("python", "console")
TIMEOUT_S = 300
# Without, the tour leaves out its block about it.
HAS_SPARK = find_spec("pyspark") is not None


def sessions(blocks: list[Block]) -> list[list[int]]:
    """The numbers of the blocks that are run, divided where it goes from Python to the shell or back."""
    run = [
        (number, block.language)
        for number, block in enumerate(blocks)
        if block.language in RUN and (HAS_SPARK or "import pulsar_ray_spark" not in block.text)
    ]
    return [[number for number, _ in group] for _, group in groupby(run, key=itemgetter(1))]


@pytest.mark.timeout(900)
def test_the_tour_does_what_it_says(tmp_path: Path) -> None:
    with new_environment(tmp_path) as environment:
        for numbers in sessions(blocks_of(README)):
            command = [sys.executable, "-m", "tests.docs.run_blocks", str(README), *map(str, numbers)]
            done = subprocess.run(
                command,
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            print(done.stdout)
            assert done.returncode == 0, done.stdout


def test_the_tour_can_be_typed_into_python() -> None:
    """An interactive Python wants an empty line after a loop."""
    for block in blocks_of(README):
        if block.language != "python":
            continue
        typed: list[str] = []
        for line in [*block.text.splitlines(), ""]:
            typed.append(line)
            if compile_command("\n".join(typed)) is not None:
                typed = []
        assert not typed, f"line {block.line}"


def test_what_is_not_run_exists() -> None:
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ":" in line}
    for block in blocks_of(README):
        if block.language == "yaml":
            assert yaml.safe_load(block.text)
        elif block.language not in RUN:
            assert block.language == "sh"
            for line in block.text.splitlines():
                command = line.partition("#")[0].split()
                assert command[0] in ("make", "ray"), line
                if command[0] == "make":
                    assert command[1] in targets
                else:
                    assert (ROOT / command[2]).is_file()


@pytest.mark.parametrize(
    ("wanted", "printed", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a"], [], False),
        ([], ["a"], False),
        (["a [1]?"], ["a [1]?"], True),
        (["a ... c"], ["a b c"], True),
        (["...", "c"], ["a", "b", "c"], True),
        (["...", "c"], ["a", "b"], False),
    ],
)
def test_comparing_what_is_printed(wanted: list[str], printed: list[str], same: bool) -> None:
    assert is_printed(wanted, printed) is same


def test_every_setting_is_listed_with_its_default_or_as_reserved() -> None:
    text = README.read_text(encoding="utf-8")
    section = text.partition("\n## Settings\n")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == settings_rows()
    reserved = section.rpartition(":\n")[2]
    assert re.findall("`[a-z_]+`", reserved) == reserved_names()
