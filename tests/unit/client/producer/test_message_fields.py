from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray.client.producer.message_fields import MessageFields, message_fields
from tests.unit.client.official_signatures import SEND

DEFAULTS = {name: default for name, default in SEND.parameters.items() if name != "content"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"properties": {"a": 1}},
        {"properties": "a=b"},
        {"partition_key": b"k"},
        {"partition_key": "\ud800"},
        {"ordering_key": 5},
        {"sequence_id": "1"},
        {"sequence_id": -1},
        {"sequence_id": 2**63},
        {"replication_clusters": "us"},
        {"replication_clusters": [1]},
        {"disable_replication": "no"},
        {"event_timestamp": 1.5},
        {"event_timestamp": -1},
        {"deliver_at": "tomorrow"},
        {"deliver_after": 5},
        {"deliver_at": 5, "deliver_after": timedelta(seconds=1)},
    ],
    ids=ascii,
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        message_fields(**{**DEFAULTS, **wrong})


def test_zero_and_empty_are_values() -> None:
    fields = message_fields(
        **{**DEFAULTS, "sequence_id": 0, "event_timestamp": 0, "partition_key": "", "properties": {}}
    )
    assert fields == MessageFields(sequence_id=0)


def test_arguments_that_say_nothing_need_no_fields() -> None:
    assert message_fields(**DEFAULTS) is None
    assert message_fields(**{**DEFAULTS, "partition_key": "", "properties": {}, "event_timestamp": 0}) is None


def test_all_of_it_is_kept() -> None:
    given = {"partition_key": "k", "ordering_key": "o", "properties": {"a": "b"}, "event_timestamp": True}
    fields = message_fields(**{**DEFAULTS, **given, "sequence_id": 3, "deliver_at": 5})
    assert fields == MessageFields("k", "o", {"a": "b"}, 1, 3, 5)


def test_a_delay_ends_at_a_time() -> None:
    fields = message_fields(**{**DEFAULTS, "deliver_after": timedelta(seconds=60)})
    assert fields is not None
    assert fields.deliver_at is not None
    assert message_fields(**{**DEFAULTS, "deliver_at": fields.deliver_at}) == fields
    with pytest.raises(ValueError, match="9999"):
        message_fields(**{**DEFAULTS, "deliver_after": timedelta(days=3_000_000)})


def test_replication_is_accepted_without_effect() -> None:
    message_fields(**{**DEFAULTS, "replication_clusters": ["us"], "disable_replication": True})
