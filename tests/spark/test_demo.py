from __future__ import annotations

import io
import os
import subprocess
import sys
import zlib
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from rich.console import Console

from pulsar_ray.cli.main import main
from pulsar_ray_spark.demo import Demo
from pulsar_ray_spark.demo.job import count_differences, differences, table
from pulsar_ray_spark.demo.text import (
    Tally,
    TextFile,
    batches,
    own_files,
    standard_library,
    tally_of,
)
from tests.docs.new_user import QUICK_JVMS
from tests.ending_processes import command_lines

TIMEOUT_S = 400.0


def arriving(lines: list[bytes]) -> Tally:
    tally = Tally()
    for line in lines:
        tally.add(line)
    return tally


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\n\xff\n\n", [b"a\r", b"\xff", b""]),
    ],
)
def test_lines_of_a_file(tmp_path: Path, content: bytes, lines: list[bytes]) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    assert TextFile("f", path).lines() == lines


def test_a_tally_of_lines_that_arrive_is_the_files_only_in_order() -> None:
    lines = [b"one", b"", b"two", b"two"]
    assert arriving(lines).text_crc == tally_of(lines).text_crc == zlib.crc32(b"one\n\ntwo\ntwo\n")
    for wrong in ([b"one", b"two", b"", b"two"], lines[:-1], [*lines, b"two"], [b"onE", *lines[1:]]):
        assert arriving(wrong).text_crc != tally_of(lines).text_crc


def test_the_standard_library_by_module() -> None:
    files = {file.module: file.path for file in standard_library()}
    assert files["json"].name == "__init__.py"
    assert files["json.decoder"].name == "decoder.py"
    assert len(files) == len(standard_library())
    assert not [path for path in files.values() if "site-packages" in path.parts]
    assert len(standard_library(7)) == 7


def test_batches_hold_every_line_once_and_every_tally(tmp_path: Path) -> None:
    sizes = [0, 3, 10, 1, 25]
    for index, size in enumerate(sizes):
        (tmp_path / str(index)).write_text("".join(f"{index}.{line}\n" for line in range(size)))
    files = own_files([tmp_path / str(index) for index in (0, 1, 2, 3, 4, 1)])
    assert len(files) == 5
    taken = list(batches(files, 8))
    assert [len(values) for _, values, _ in taken] == [8, 8, 8, 8, 7]
    values = [value for _, values, _ in taken for value in values]
    assert values == [f"{i}.{line}".encode() for i, size in enumerate(sizes) for line in range(size)]
    keys = [key for keys, _, _ in taken for key in keys]
    assert keys == [str(tmp_path / str(i)) for i, size in enumerate(sizes) for _ in range(size)]
    tallies = {module: tally for _, _, tallies in taken for module, tally in tallies.items()}
    assert {module: tally.lines for module, tally in tallies.items()} == {
        str(tmp_path / str(i)): size for i, size in enumerate(sizes) if size
    }


def test_differences_name_module_side_and_kind() -> None:
    files = {"a": Tally(2, 7, 9), "b": Tally(1, 5, 5), "c": Tally(3, 1, 1)}
    assert differences(files, files, files) == []
    consumed = {"a": Tally(2, 8, 9), "b": Tally(1, 5, 5), "c": Tally(3, 1, 1), "d": Tally(1, 1, 1)}
    in_spark = {"a": Tally(2, 0, 9), "b": Tally(1, 0, 6), "c": Tally(2, 0, 1)}
    assert differences(files, consumed, in_spark) == [
        "a: consumers got its lines out of order, or changed",
        "b: Spark got changed lines",
        "c: 3 lines in the file, Spark counted 2",
        "d: 0 lines in the file, consumers counted 1",
    ]


def test_counts_that_were_written_back_are_compared() -> None:
    files = {"a": Tally(2), "b": Tally(1), "empty": Tally(0)}
    assert count_differences(files, {"a": 2, "b": 1}) == []
    assert count_differences(files, {"a": 3, "c": 1}) == [
        "a: 2 lines in the file, 3 written back",
        "b: 1 lines in the file, 0 written back",
        "c: 0 lines in the file, 1 written back",
    ]


@pytest.mark.parametrize("side", ["consumers", "Spark"])
def test_any_difference_ends_the_command_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    (tmp_path / "f").write_text("one\n")

    def conclude(demo: Demo) -> None:
        files, wrong = {"f": Tally(1, 5, 5)}, {"f": Tally(1, 6, 6)}
        sides = (wrong, files) if side == "consumers" else (files, wrong)
        demo._conclude(files, *sides, {"f": 1})

    monkeypatch.setattr(Demo, "run", conclude)
    result = CliRunner().invoke(main, ["demo", "--input", str(tmp_path / "f")])
    assert result.exit_code == 1
    assert "1 differences between the files and what arrived" in result.output
    assert f"f: {side} got" in result.output


def test_the_table_shows_the_largest_modules_and_the_sums() -> None:
    files = {f"m{index}": Tally(index, 0, 0) for index in range(1, 21)}
    console = Console(file=io.StringIO(), width=100)
    console.print(table(files, files, files))
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "m20" in shown
    assert "m1 " not in shown
    assert "12 more" in shown
    assert "210" in shown


@pytest.mark.long
@pytest.mark.timeout(500)
def test_the_demo_on_some_files_ends_everything_it_started(tmp_path: Path) -> None:
    text = tmp_path / "ünïcode.txt"
    text.write_bytes(b"one\n\xff\xfe\n\none" * 500)
    inputs = ["--input", str(text), *(str(file.path) for file in standard_library(40))]
    data_dir = tmp_path / "data"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from pulsar_ray.cli.main import main; main()",
            "demo",
            "--data-dir",
            str(data_dir),
            *inputs,
        ],
        env=os.environ | QUICK_JVMS | {"PULSAR_RAY_EMBEDDED_DASHBOARD": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done
    assert "arrived once and unchanged" in done.stdout
    assert "killed     partition" in done.stdout
    assert "counts back to a topic" in done.stdout
    assert "dashboard  http" in done.stdout
    left = command_lines(psutil.process_iter())
    assert [line for line in left.values() if str(data_dir) in line] == []
