from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pulsar_ray.client.producer.send_arguments import check_send_arguments
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
        check_send_arguments(**{**DEFAULTS, **wrong})


def test_zero_and_empty_are_values() -> None:
    check_send_arguments(
        **{**DEFAULTS, "sequence_id": 0, "event_timestamp": 0, "partition_key": "", "properties": {}}
    )


def test_replication_is_accepted_without_effect() -> None:
    check_send_arguments(**{**DEFAULTS, "replication_clusters": ["us"], "disable_replication": True})
