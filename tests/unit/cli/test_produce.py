from __future__ import annotations

import io
from datetime import timedelta
from pathlib import Path

import pytest

from pulsar_ray.errors import DiskSpaceLow
from pulsar_ray.model.enums import CompressionType
from pulsar_ray.testing.waiting import wait_until
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeProducer, FakeTarget


def test_lines_of_standard_input_become_messages(run: Run) -> None:
    target = FakeTarget()
    result = run(target, "produce", "t", input=b"one\ntwo\r\n\n\xff last")
    assert result.exit_code == 0
    assert target.the_client.producer.sent == [
        (b"one", None),
        (b"two", None),
        (b"", None),
        (b"\xff last", None),
    ]
    assert "4 lines sent, all confirmed" in result.stderr
    assert result.stdout == ""
    assert target.the_client.is_closed


def test_files_are_sent_in_turn(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n")
    (tmp_path / "b").write_text("3")
    target = FakeTarget()
    result = run(target, "produce", "t", str(tmp_path / "a"), "-", str(tmp_path / "b"), input="in\n")
    assert result.exit_code == 0
    assert [value for value, _ in target.the_client.producer.sent] == [b"1", b"2", b"in", b"3"]


def test_keys_by_separator(run: Run) -> None:
    target = FakeTarget()
    run(target, "produce", "t", "--key-separator", "::", input="k::v::w\nno key\n::empty\n")
    assert target.the_client.producer.sent == [(b"v::w", "k"), (b"no key", None), (b"empty", None)]


def test_keys_by_regular_expression(run: Run) -> None:
    target = FakeTarget()
    run(target, "produce", "t", "--key-regex", r"user=(\w+)", input="user=ann x\nnobody\n")
    assert target.the_client.producer.sent == [(b"user=ann x", "ann"), (b"nobody", None)]
    target = FakeTarget()
    run(target, "produce", "t", "--key-regex", r"\d+", input="a12b\n")
    assert target.the_client.producer.sent == [(b"a12b", "12")]


def test_options_reach_the_producer(run: Run) -> None:
    target = FakeTarget()
    run(target, "produce", "t", "--compression", "zstd", "--no-batching", "--name", "p", input="")
    options = target.the_client.options
    assert options["compression_type"] is CompressionType.ZSTD
    assert options["batching_enabled"] is False
    assert options["producer_name"] == "p"
    assert options["block_if_queue_full"] is True


def test_it_warns_when_nothing_keeps_the_lines(run: Run) -> None:
    target = FakeTarget(FakeProducer(name="a $b"))
    target.the_admin.topic_stats = {"subscriptions": {"reader": {"isDurable": False}}}
    warned = run(target, "produce", "a $b", input="x\n").stderr
    assert "nothing keeps these lines" in warned
    assert "pulsar-ray consume 'persistent://public/default/a $b' -s NAME" in warned
    target.the_admin.retention = (10, -1)
    assert "nothing keeps" not in run(target, "produce", "t", input="x\n").stderr
    target.the_admin.retention = (10, 0)
    assert "nothing keeps" in run(target, "produce", "t", input="x\n").stderr
    target.the_admin.topic_stats = {"subscriptions": {"s": {"isDurable": True}}}
    assert "nothing keeps" not in run(target, "produce", "t", input="x\n").stderr


def test_an_error_ends_it_and_the_confirmed_lines_are_told(run: Run) -> None:
    target = FakeTarget(FakeProducer(error=DiskSpaceLow("free some space"), fails_at=2))
    result = run(target, "produce", "t", input="1\n2\n3\n4\n")
    assert result.exit_code == 1
    assert "stopped at standard input, line 3: 2 of 3 lines sent were confirmed" in result.stderr
    assert "Error: DiskSpaceLow: free some space" in result.stderr


def test_a_file_that_cannot_be_read_ends_it_and_the_confirmed_lines_are_told(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("1\n2\n")
    # Reading what lies at address 0 fails.
    files = (str(tmp_path / "lines"), "/proc/self/mem")
    result = run(FakeTarget(FakeProducer()), "produce", "t", *files)
    assert result.exit_code == 1
    assert "stopped at /proc/self/mem, line 0: 2 lines sent, all confirmed" in result.stderr
    assert result.stderr.endswith("Input/output error\n")


def test_ctrl_c_flushes_and_tells_what_was_confirmed(run: Run) -> None:
    target = FakeTarget(FakeProducer(interrupts_at=2))
    result = run(target, "produce", "t", input="1\n2\n3\n4\n")
    assert result.exit_code == 130
    # The line that was being sent is sent, and nothing after it.
    assert "stopped at standard input, line 3: 3 lines sent, all confirmed" in result.stderr
    assert target.the_client.producer.waiting == []
    assert target.the_client.is_closed


class SlowProducer(FakeProducer):
    """Flushes once the screen shows something."""

    def __init__(self, screen: io.StringIO, shown: str) -> None:
        super().__init__()
        self._screen = screen
        self._shown = shown

    def flush(self) -> None:
        wait_until(lambda: self._shown in self._screen.getvalue(), what=self._shown)
        super().flush()


def test_a_terminal_sees_how_far_it_is(run: Run, tmp_path: Path, screen: io.StringIO) -> None:
    (tmp_path / "a").write_text("line\n" * 3000)
    slow = SlowProducer(screen, "waiting for receipts")
    result = run(FakeTarget(slow), "produce", "t", str(tmp_path / "a"))
    assert "3,000 lines sent, all confirmed" in result.stderr
    assert "15.0/15.0 kB" in screen.getvalue()
    # Of what comes through a pipe nobody knows the end.
    result = run(FakeTarget(SlowProducer(screen, "15.0/? kB")), "produce", "t", input="line\n" * 3000)
    assert "3,000 lines sent, all confirmed" in result.stderr


def test_lines_can_be_delayed(run: Run) -> None:
    target = FakeTarget()
    run(target, "produce", "t", "--deliver-after", "90m", input="a\nb\n")
    run(target, "produce", "t", "--deliver-at", "2030-01-31T08:00:00+01:00", input="c\n")
    run(target, "produce", "t", "--deliver-at", "1896073200000", input="d\n")
    assert target.the_client.producer.delays == [
        (None, timedelta(minutes=90)),
        (None, timedelta(minutes=90)),
        (1896073200000, None),
        (1896073200000, None),
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--deliver-after", "soon"),
        ("--deliver-after", "-5s"),
        ("--deliver-after", "9999999999999w"),
        ("--deliver-at", "tomorrow"),
        ("--deliver-at", "1896073200000000"),
        ("--deliver-at", "1", "--deliver-after", "1s"),
    ],
)
def test_delays_that_mean_nothing_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    target = FakeTarget()
    result = run(target, "produce", "t", *arguments, input="a\n")
    assert result.exit_code == 2
    assert target.the_client.producer.sent == []
