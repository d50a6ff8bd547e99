"""Files as one message each."""

from __future__ import annotations

import io
import os
import signal
import stat
from pathlib import Path

import pytest

from pulsar_ray.cli.messages.whole_files import write_whole
from pulsar_ray.errors import DiskSpaceLow
from pulsar_ray.model.enums import CompressionType
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeConsumer, FakeProducer, FakeTarget


class SlowProducer(FakeProducer):
    """Confirms the second half of each message once the screen shows that the first one is."""

    def __init__(self, screen: io.StringIO, shown: str) -> None:
        super().__init__()
        self._screen = screen
        self._shown = shown

    def pending_bytes(self) -> int:
        self.asked += 1
        if self._shown in self._screen.getvalue():
            self.flush()
        return len(self.sent[-1][0]) // 2


def test_each_file_is_one_message(run: Run, tmp_path: Path, screen: io.StringIO) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"several\nlines\n" * 1000)
    second.write_bytes(b"\x00\xff")
    target = FakeTarget(SlowProducer(screen, "7.0/14.0 kB"))
    arguments = ("--whole-file", str(first), str(second), "--compression", "lz4", "--name", "p")
    result = run(target, "produce", "t", *arguments)
    assert result.exit_code == 0, result.stderr
    assert [value for value, _ in target.the_client.producer.sent] == [first.read_bytes(), b"\x00\xff"]
    options = target.the_client.options
    assert options["chunking_enabled"] is True
    assert options["batching_enabled"] is False
    assert (options["compression_type"], options["producer_name"]) == (CompressionType.LZ4, "p")
    assert f"{first}: 14.0 kB stored as" in result.stderr
    assert "7.0/14.0 kB" in screen.getvalue(), "half of it was confirmed by then"


def test_standard_input_is_a_file_too(run: Run) -> None:
    target = FakeTarget()
    result = run(target, "produce", "t", "--whole-file", "--deliver-at", "5", input=b"a\nb")
    assert target.the_client.producer.sent == [(b"a\nb", None)]
    assert target.the_client.producer.delays == [(5, None)]
    assert "standard input: 3 B stored" in result.stderr


def test_an_error_tells_what_was_stored_before(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    target = FakeTarget(FakeProducer(error=DiskSpaceLow("free some space"), fails_at=1))
    result = run(target, "produce", "t", "--whole-file", str(tmp_path / "a"), str(tmp_path / "b"))
    assert result.exit_code == 1
    assert f"{tmp_path / 'a'}: 1 B stored" in result.stderr
    assert f"{tmp_path / 'b'}: " not in result.stderr
    assert "DiskSpaceLow: free some space" in result.stderr


def test_ctrl_c_ends_waiting_for_the_receipt(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    producer = FakeProducer()

    def pending_bytes() -> int:
        signal.raise_signal(signal.SIGINT)
        return 1

    monkeypatch.setattr(producer, "pending_bytes", pending_bytes)
    result = run(FakeTarget(producer), "produce", "t", "--whole-file", str(tmp_path / "a"))
    assert result.exit_code == 130
    assert "stopped: 0 of 1 files are stored" in result.stderr


def test_a_file_that_no_message_holds_is_refused_before_it_is_read(run: Run, tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(3_000_000_000)
    target = FakeTarget()
    result = run(target, "produce", "t", "--whole-file", str(tmp_path / "huge"))
    assert "MessageTooBig" in result.stderr
    assert target.the_client.producer.sent == []


def test_whole_files_have_no_lines(run: Run) -> None:
    result = run(FakeTarget(), "produce", "t", "--whole-file", "--key-separator", ":", input="x")
    assert result.exit_code == 2


def test_one_message_goes_into_a_file_and_is_acknowledged_then(run: Run, tmp_path: Path) -> None:
    consumer = FakeConsumer([[(b"\x00\nfirst", None), (b"second", None)]])
    target = FakeTarget(consumer=consumer)
    into = tmp_path / "into"
    result = run(target, "consume", "t", "-s", "s", "--into", str(into))
    assert result.exit_code == 0, result.stderr
    assert into.read_bytes() == b"\x00\nfirst"
    assert list(tmp_path.iterdir()) == [into]
    assert consumer.acknowledged == 1
    assert target.the_client.options["receiver_queue_size"] == 1


def test_its_name_is_durable_before_it_is_acknowledged(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = FakeConsumer([[(b"first", None)]])
    synced: list[tuple[bool, int]] = []
    sync = os.fsync

    def note(fd: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(fd).st_mode), consumer.acknowledged))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    into = str(tmp_path / "into")
    assert run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--into", into).exit_code == 0
    assert synced == [(False, 0), (True, 0)]


def test_a_file_that_cannot_be_written_is_said_in_a_line(run: Run, tmp_path: Path) -> None:
    consumer = FakeConsumer([[(b"first", None)]])
    into = str(tmp_path / "nowhere" / "into")
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--into", into)
    assert (result.exit_code, consumer.acknowledged) == (1, 0)
    assert result.stderr.startswith("Error: ")
    assert "No such file or directory" in result.stderr
    assert result.stderr.count("\n") == 1


def test_one_message_goes_to_standard_output_as_it_is(run: Run) -> None:
    consumer = FakeConsumer([[(b"no newline", None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--into", "-")
    assert result.stdout_bytes == b"no newline"


def test_a_file_that_exists_is_not_written_over(run: Run, tmp_path: Path) -> None:
    consumer = FakeConsumer([[(b"x", None)]])
    (tmp_path / "into").write_text("mine")
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--into", str(tmp_path / "into"))
    assert result.exit_code == 2
    with pytest.raises(FileExistsError):
        write_whole(b"x", str(tmp_path / "into"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    assert consumer.acknowledged == 0


@pytest.mark.parametrize("other", [("--json",), ("--key-separator", ":"), ("-n", "2")])
def test_what_concerns_lines_is_refused_beside_it(run: Run, tmp_path: Path, other: tuple[str, ...]) -> None:
    result = run(FakeTarget(), "consume", "t", "-s", "s", "--into", str(tmp_path / "into"), *other)
    assert result.exit_code == 2


def test_no_message_is_an_error(run: Run, tmp_path: Path) -> None:
    result = run(FakeTarget(), "consume", "t", "-s", "s", "--no-follow", "--into", str(tmp_path / "into"))
    assert result.exit_code == 1
    assert "no message" in result.stderr
    assert list(tmp_path.iterdir()) == []
