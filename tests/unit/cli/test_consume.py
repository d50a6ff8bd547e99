from __future__ import annotations

import io
import json
import sys
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.cli.main import main
from pulsar_ray.cli.messages.consume import TYPES
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.schema import AutoSchema
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


class Terminal(io.TextIOWrapper):
    """Standard output that somebody looks at."""

    def isatty(self) -> bool:
        return True


STEERING = (
    "\x1b[2J",
    "\x1b]0;title\x07",
    "\r",
    "\x7f",
    "\x9b31m",
    "\u202e",
    "\u2066",
    "\u2028",
    "\U000e0001",
)
SHOWN = "a\tb\nc ä \u3000\u05d0\u200d\U0001f469"


def consumed_on_a_terminal(monkeypatch: pytest.MonkeyPatch, value: bytes, *arguments: str) -> str:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(written, encoding="utf-8", write_through=True))
    target = FakeTarget(consumer=FakeConsumer([[(value, "k\x1b[31m")]]))
    main(["consume", "t", "-s", "s", "--no-follow", *arguments], obj=target, standalone_mode=False)
    return written.getvalue().decode()


@pytest.mark.parametrize("sign", STEERING)
def test_a_terminal_is_not_steered_by_messages(monkeypatch: pytest.MonkeyPatch, sign: str) -> None:
    for arguments in ((), ("--key-separator", ":"), ("--json",)):
        shown = consumed_on_a_terminal(monkeypatch, f"<{sign}>".encode(), *arguments)
        assert not set(sign) & set(shown) - set("[2J]0;title31m")
        assert shown.replace("\n", "").isprintable()
        assert shown.count("\n") == 1


def test_a_terminal_shows_text_as_it_is_and_bytes_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert consumed_on_a_terminal(monkeypatch, SHOWN.encode()) == SHOWN + "\n"
    assert consumed_on_a_terminal(monkeypatch, b"<\xff\x9b>") == "<\\xff\\x9b>\n"


@pytest.mark.parametrize("sign", STEERING)
def test_a_file_or_pipe_gets_every_byte(run: Run, sign: str) -> None:
    consumer = FakeConsumer([[(sign.encode(), None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "--no-follow")
    assert result.stdout_bytes == sign.encode() + b"\n"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_json_says_the_same_with_every_sign_to_be_seen(value: str) -> None:
    written = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(written, write_through=True))
        target = FakeTarget(consumer=FakeConsumer([[(value.encode(), value)]]))
        main(["consume", "t", "-s", "s", "--no-follow", "--json"], obj=target, standalone_mode=False)
        line = written.getvalue().decode()
    assert line[:-1].isprintable()
    assert json.loads(line)["value"] == value


def test_a_message_as_it_is_does_not_go_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(click.UsageError, match="name a file"):
        consumed_on_a_terminal(monkeypatch, b"x", "--into", "-")


def test_it_stops_after_count_and_acknowledges_no_more(run: Run) -> None:
    consumer = FakeConsumer([[(b"1", None), (b"2", None)], [(b"3", None), (b"4", None)], [(b"5", None)]])
    result = run(FakeTarget(consumer=consumer), "consume", "t", "-s", "s", "-n", "3")
    assert result.exit_code == 0
    assert result.stdout == "1\n2\n3\n"
    assert consumer.acknowledged == 3


def test_options_reach_the_consumer(run: Run) -> None:
    target = FakeTarget()
    run(target, "consume", "t", "-s", "s", "--no-follow")
    assert isinstance(target.the_client.options.pop("schema"), AutoSchema)
    expected = {
        "topic": "t",
        "subscription": "s",
        "type": ConsumerType.Exclusive,
        "receiver_queue_size": 1000,
    }
    assert target.the_client.options == {**expected, "initial_position": InitialPosition.Earliest}
    for name, kind in TYPES.items():
        run(target, "consume", "t", "-s", "s", "--no-follow", "--type", name, "--from", "latest")
        target.the_client.options.pop("schema")
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
        self.is_over = False
        """Whether only what Python's own buffers still hold is written, which is lost."""
        self._room = room
        self._blocks = blocks

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int | None:
        if self.is_over:
            return len(data)
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
    except (OSError, click.ClickException):
        assert len(pipe.taken) < 30
    pipe.is_over = True
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
