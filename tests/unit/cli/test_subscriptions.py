"""`pulsar-ray topics`: the commands that concern subscriptions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.message_id import MessageId
from tests.unit.cli.conftest import Run
from tests.unit.cli.fakes import FakeTarget

LAST = MessageId(-1, 7, 8)


@pytest.mark.parametrize(
    ("arguments", "call", "answer", "text"),
    [
        (("subscriptions", "t"), ("subscriptions", "t"), ["a", "b"], "a\nb\n"),
        (
            ("create-subscription", "t", "-s", "a"),
            ("create_subscription", "t", "a", "earliest"),
            None,
            "created a",
        ),
        (
            ("create-subscription", "t", "-s", "a", "-m", "3:4"),
            ("create_subscription", "t", "a", MessageId(-1, 3, 4)),
            None,
            "created a",
        ),
        (
            ("update-subscription-properties", "t", "-s", "a", "-p", "x=1", "-p", "y=a=b"),
            ("update_subscription_properties", "t", "a", {"x": "1", "y": "a=b"}),
            None,
            "a has 2 properties",
        ),
        (
            ("set-delayed-delivery-strict", "t", "-s", "a", "true"),
            ("set_delayed_delivery_strict", "t", "a", True),
            None,
            "set for a: true",
        ),
        (
            ("set-delayed-delivery-strict", "t", "-s", "a", "as-topic"),
            ("set_delayed_delivery_strict", "t", "a", None),
            None,
            "set for a: as-topic",
        ),
        (("unsubscribe", "t", "-s", "a"), ("unsubscribe", "t", "a", False), None, "deleted a"),
        (("unsubscribe", "t", "-s", "a", "-f"), ("unsubscribe", "t", "a", True), None, "deleted a"),
        (("skip", "t", "-s", "a", "-n", "5"), ("skip", "t", "a", 5), 4, "skipped 4 entries"),
        (
            ("redrive", "t", "--to", "u", "-s", "a", "-n", "5"),
            ("redrive", "t", "u", "a", 5, False),
            {"u": 1234},
            "sent 1,234 messages to u",
        ),
        (("redrive", "t", "--dry-run"), ("redrive", "t", None, None, None, True), {"u": 1}, "would send 1"),
        (("redrive", "t"), ("redrive", "t", None, None, None, False), {"": 2}, "give --to"),
        (("redrive", "t"), ("redrive", "t", None, None, None, False), {}, "nothing waits"),
        (("clear-backlog", "t", "-s", "a"), ("skip_all", "t", "a"), 1234, "skipped 1,234 entries"),
        (
            ("reset-cursor", "t", "-s", "a", "-m", "3:4:1"),
            ("reset_cursor", "t", "a", MessageId(1, 3, 4)),
            None,
            "reset a",
        ),
        (
            ("reset-cursor", "t", "-s", "a", "-m", "latest"),
            ("reset_cursor", "t", "a", "latest"),
            None,
            "reset a",
        ),
        (
            ("expire-messages", "t", "-s", "a", "-t", "60"),
            ("expire_messages", "t", "a", 60.0),
            2,
            "expired 2 entries",
        ),
        (
            ("expire-messages-all-subscriptions", "t", "-t", "60"),
            ("expire_messages_all_subscriptions", "t", 60.0),
            {"b": 1, "a": 2},
            "a: expired 2 entries\nb: expired 1 entries\n",
        ),
        (("last-message-id", "t"), ("get_last_message_id", "t"), LAST, "7:8:-1:-1\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_each_command_is_one_call(
    run: Run, arguments: tuple[str, ...], call: tuple[Any, ...], answer: Any, text: str
) -> None:
    target = FakeTarget()
    target.the_admin.answers[call[0]] = answer
    result = run(target, "topics", *arguments)
    assert result.exit_code == 0, result.output
    assert target.the_admin.calls == [call, "close"]
    assert text in result.stdout


def test_a_time_is_so_long_ago(run: Run) -> None:
    target = FakeTarget()
    run(target, "topics", "reset-cursor", "t", "-s", "a", "-t", "2h")
    name, topic, subscription, at_ms = target.the_admin.calls[0]
    assert (name, topic, subscription) == ("reset_cursor", "t", "a")
    assert 0 <= time.time() * 1000 - 7_200_000 - at_ms < 60_000


def test_peeked_messages_are_json(run: Run) -> None:
    target = FakeTarget()
    block = ReceivedBlock.outgoing("persistent://public/default/t", b"v", key="k")
    target.the_admin.answers["peek_messages"] = [Message(block, 0)]
    shown = json.loads(run(target, "topics", "peek-messages", "t", "-s", "a").stdout)
    assert (shown["value"], shown["key"]) == ("v", "k")
    assert target.the_admin.calls[0] == ("peek_messages", "t", "a", 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("skip", "t", "-s", "a", "-n", "0"),
        ("skip", "t", "-n", "1"),
        ("reset-cursor", "t", "-s", "a"),
        ("reset-cursor", "t", "-s", "a", "-t", "1h", "-m", "latest"),
        ("reset-cursor", "t", "-s", "a", "-t", "yesterday"),
        ("reset-cursor", "t", "-s", "a", "-m", "3"),
        ("create-subscription", "t", "-s", "a", "-m", "x:y"),
        ("expire-messages", "t", "-s", "a", "-t", "-1"),
    ],
    ids=" ".join,
)
def test_wrong_usage_asks_nobody(run: Run, arguments: tuple[str, ...]) -> None:
    target = FakeTarget()
    assert run(target, "topics", *arguments).exit_code == 2
    assert target.the_admin.calls == []
