from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from pulsar_ray.cli.main import main
from pulsar_ray.cli.messages.consume import TYPES
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeConsumer, FakeTarget


def test_values_are_printed_as_they_are_and_then_acknowledged(run: Run) -> None:
    consumer = FakeConsumer([[(b"one", None), (b"\xff", "k")], [(b"", None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--no-follow")
    assert result.exit_code == 0
    assert result.stdout_bytes == b"one\n\xff\n\n"
    assert consumer.acknowledged == 3


def test_keys_before_the_values(run: Run) -> None:
    consumer = FakeConsumer([[(b"v", "k"), (b"w", None)]])
    result = run(
        FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--no-follow", "--key-separator", ":"
    )
    assert result.stdout == "k:v\n:w\n"


def test_json_has_text_or_base64_or_null(run: Run) -> None:
    consumer = FakeConsumer([[("ä".encode(), "k"), (b"\xff", None), (None, None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--no-follow", "--json")
    first, second, third = map(json.loads, result.stdout.splitlines())
    assert (first["value"], first["key"]) == ("ä", "k")
    assert first["topic"] == "persistent://public/default/t"
    assert second["value_base64"] == "/w=="
    assert "value" not in second
    assert third["value"] is None


def test_it_stops_after_count_and_acknowledges_no_more(run: Run) -> None:
    consumer = FakeConsumer([[(b"1", None), (b"2", None)], [(b"3", None), (b"4", None)], [(b"5", None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "-n", "3")
    assert result.exit_code == 0
    assert result.stdout == "1\n2\n3\n"
    assert consumer.acknowledged == 3


def test_options_reach_the_consumer(run: Run) -> None:
    target = FakeTarget()
    run(target, "consume", "t", "-s", "s", "--no-follow")
    expected = {
        "topic": "t",
        "subscription": "s",
        "type": ConsumerType.Exclusive,
        "receiver_queue_size": 1000,
    }
    assert target.the_client.options == {**expected, "initial_position": InitialPosition.Earliest}
    for name, kind in TYPES.items():
        run(target, "consume", "t", "-s", "s", "--no-follow", "--type", name, "--from", "latest")
        expected["type"] = kind
        assert target.the_client.options == {**expected, "initial_position": InitialPosition.Latest}
    assert set(TYPES.values()) == set(ConsumerType)


def test_ctrl_c_closes_before_it_says_what_was_acknowledged(run: Run) -> None:
    consumer = FakeConsumer([[(b"1", None)]], interrupts=True)
    target = FakeTarget(consumer=consumer)
    result = run(target, "consume", "t", "-s", "s")
    assert result.exit_code == 130
    assert result.stdout == "1\n"
    assert "1 messages acknowledged" in result.stderr
    assert target.the_client.is_closed


class Pipe(io.RawIOBase):
    """Takes a few bytes at a time, and when `room` is used up does as one that nobody reads."""

    def __init__(self, room: int, *, blocks: bool = True) -> None:
        self.taken = b""
        self._room = room
        self._blocks = blocks

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int | None:
        part = bytes(data[: min(7, self._room - len(self.taken))])
        self.taken += part
        if part:
            return len(part)
        if self._blocks:
            raise BrokenPipeError
        return None


def consume_into(pipe: Pipe, arguments: list[str], monkeypatch: pytest.MonkeyPatch, *, buffered: bool) -> int:
    """Consume three batches of 10 bytes each. Returns how many messages were acknowledged."""
    output: Any = io.BufferedWriter(pipe) if buffered else pipe
    consumer = FakeConsumer([[(b"%04d" % first, None), (b"%04d" % (first + 1), None)] for first in (0, 2, 4)])
    # As Python makes it, without a buffer under PYTHONUNBUFFERED.
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, write_through=True))
    try:
        main(
            ["consume", "t", "-s", "s", *arguments], obj=FakeTarget(consumer=consumer), standalone_mode=False
        )
    except OSError:
        assert len(pipe.taken) < 30
    return consumer.acknowledged


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize(("room", "shown"), [(3, 0), (9, 0), (10, 2), (19, 2), (29, 4), (30, 6), (99, 6)])
def test_only_batches_that_were_written_whole_are_acknowledged(
    monkeypatch: pytest.MonkeyPatch, room: int, shown: int, blocks: bool, buffered: bool
) -> None:
    pipe = Pipe(room, blocks=blocks)
    assert consume_into(pipe, ["--no-follow"], monkeypatch, buffered=buffered) == shown
    assert pipe.taken == b"0000\n0001\n0002\n0003\n0004\n0005\n"[:room]


@pytest.mark.parametrize("buffered", [True, False])
def test_a_message_for_standard_output_is_acknowledged_when_all_of_it_was_written(
    monkeypatch: pytest.MonkeyPatch, buffered: bool
) -> None:
    for room, shown in (3, 0), (4, 1):
        assert consume_into(Pipe(room), ["--into", "-"], monkeypatch, buffered=buffered) == shown
