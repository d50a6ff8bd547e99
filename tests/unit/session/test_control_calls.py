"""Control calls and their arguments, which come over sessions and over actor handles."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.session.control_calls import CONSUMER_CALLS, PARTITION_CALLS, check_call

SEEK = {"target": (5, 3), "inclusive": False}
REGISTER = {"name": "s", "durable": True, "initial": "latest", "properties": {"a": "b"}, "create": True}
PLAN = {"start": "earliest", "end": {"subscription": "s"}, "slice_bytes": 1, "lease_ms": 60_000}


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("register_subscription", REGISTER),
        ("register_subscription", {**REGISTER, "initial": [5, 3]}),
        ("hold_for_seek", {"number": 1, **SEEK}),
        ("seek_position", {**SEEK, "target": 1_700_000_000_000}),
        ("plan_range", PLAN),
        ("plan_range", {**PLAN, "start": [5, 3], "end": "latest"}),
        ("last_message", {}),
    ],
)
def test_what_is_asked_is_taken(method: str, arguments: dict[str, Any]) -> None:
    check_call(PARTITION_CALLS, "partition", method, arguments)


@pytest.mark.parametrize(
    ("method", "arguments", "text"),
    [
        ("seek", SEEK, "a partition has no call 'seek'"),
        ("last_message", {"position": 1}, "last_message takes no arguments, not 'position'"),
        ("remove_subscription", {}, "remove_subscription takes number"),
        ("remove_subscription", {"number": "1"}, "number cannot be '1'"),
        ("register_subscription", {**REGISTER, "initial": "middle"}, "initial cannot be 'middle'"),
        ("register_subscription", {**REGISTER, "properties": {"a": 1}}, "properties cannot be"),
        ("hold_for_seek", {"number": 1, "target": (5,), "inclusive": False}, "target cannot be"),
        ("seek_position", {**SEEK, "inclusive": 1}, "inclusive cannot be 1"),
        ("plan_range", {**PLAN, "slice_bytes": 0}, "slice_bytes cannot be 0"),
        ("plan_range", {**PLAN, "end": {"subscription": 1}}, "end cannot be"),
        ("grant_lease", {"first": [1, 2], "last": [1], "expires_ms": 1}, "last cannot be"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong(
    method: str, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=text):
        check_call(PARTITION_CALLS, "partition", method, arguments)


def test_consumers_have_calls_of_their_own() -> None:
    check_call(CONSUMER_CALLS, "dispatcher", "seek", {"seek_id": 2**62 - 1, **SEEK})
    check_call(CONSUMER_CALLS, "dispatcher", "has_more", {"numbering": 1 << 20, "received": 0})
    with pytest.raises(InvalidConfiguration, match="a dispatcher has no call 'remove_subscription'"):
        check_call(CONSUMER_CALLS, "dispatcher", "remove_subscription", {"number": 1})
