from __future__ import annotations

import json

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
