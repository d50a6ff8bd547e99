from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.logs.node_log import FORMER_FILES, NODE_LOG, NodeLog
from pulsar_ray.errors import UntrustedPath
from tests.other_user import SOMEBODY, needs_root

WRITER = """
import sys
from pathlib import Path
from pulsar_ray.broker.serving.logs.node_log import NodeLog

directory, name = sys.argv[1:]
log = NodeLog(Path(directory), max_bytes=4000)
for number in range(200):
    log.write(f"{name} {number} " + "x" * 40)
"""


def test_a_large_file_is_put_aside_and_few_are_kept(tmp_path: Path) -> None:
    log = NodeLog(tmp_path, max_bytes=100)
    for number in range(20):
        log.write(f"{number:02} " + "x" * 60)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [NODE_LOG, *(f"{NODE_LOG}.{number}" for number in range(1, FORMER_FILES + 1))]
    files = [tmp_path / NODE_LOG, *(tmp_path / f"{NODE_LOG}.{n}" for n in range(1, FORMER_FILES + 1))]
    read = [line for path in reversed(files) for line in path.read_text().splitlines()]
    assert [line.split()[0] for line in read] == [f"{number:02}" for number in range(12, 20)]


def test_a_file_that_was_renamed_or_removed_is_made_anew(tmp_path: Path) -> None:
    log = NodeLog(tmp_path)
    log.write("first")
    os.rename(tmp_path / NODE_LOG, tmp_path / "elsewhere")
    log.write("second")
    assert (tmp_path / NODE_LOG).read_text() == "second\n"
    (tmp_path / NODE_LOG).unlink()
    log.write("third")
    assert (tmp_path / NODE_LOG).read_text() == "third\n"


def test_others_of_the_machine_cannot_read_it(tmp_path: Path) -> None:
    NodeLog(tmp_path).write("first")
    assert (tmp_path / NODE_LOG).stat().st_mode & 0o077 == 0


def test_names_that_are_no_unicode_are_written(tmp_path: Path) -> None:
    NodeLog(tmp_path).write("a lone \udc80 half")
    assert (tmp_path / NODE_LOG).read_text() == "a lone \\udc80 half\n"


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        NodeLog(tmp_path / "gone").write("first")


def test_processes_write_whole_lines_beside_each_other(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), name]) for name in "abc"]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines()]
    assert lines
    for line in lines:
        name, number, rest = line.split(" ")
        assert name in "abc"
        assert 0 <= int(number) < 200
        assert rest == "x" * 40


@pytest.mark.parametrize("makes", [os.symlink, os.link])
def test_a_line_does_not_go_where_a_link_leads(tmp_path: Path, makes: Callable[[Path, Path], None]) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "logs").mkdir()
    log = NodeLog(tmp_path / "logs")
    makes(victim, tmp_path / "logs" / NODE_LOG)
    for _ in range(2):
        with pytest.raises(UntrustedPath, match=NODE_LOG):
            log.write("line")
    assert victim.read_text() == "precious"
    (tmp_path / "logs" / NODE_LOG).unlink()
    log.write("line")
    assert (tmp_path / "logs" / NODE_LOG).read_text() == "line\n"


def test_a_link_that_comes_while_the_log_is_open_is_not_followed(tmp_path: Path) -> None:
    log = NodeLog(tmp_path)
    log.write("first")
    os.rename(tmp_path / NODE_LOG, tmp_path / "moved")
    (tmp_path / NODE_LOG).symlink_to(tmp_path / "moved")
    with pytest.raises(UntrustedPath, match="link"):
        log.write("second")
    assert (tmp_path / "moved").read_text() == "first\n"


@needs_root
def test_a_file_that_another_user_has_put_there_gets_no_line(tmp_path: Path) -> None:
    (tmp_path / NODE_LOG).touch()
    os.chown(tmp_path / NODE_LOG, SOMEBODY, SOMEBODY)
    with pytest.raises(UntrustedPath, match=f"user {SOMEBODY}"):
        NodeLog(tmp_path).write("line")
    assert (tmp_path / NODE_LOG).read_text() == ""
