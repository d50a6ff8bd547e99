from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import MessageId
from pulsar_ray_spark.plan import AtMessages, AtSubscription, AtTime, as_bound

_FIRST, _SECOND = MessageId(0, 7, 3, -1), MessageId(1, 9, 4, 2)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        (MessageId.earliest, "earliest"),
        (MessageId.latest, "latest"),
        (_FIRST, AtMessages((_FIRST,))),
        ([_FIRST, _SECOND], AtMessages((_FIRST, _SECOND))),
        (AtTime(5), AtTime(5)),
        (AtSubscription("s"), AtSubscription("s")),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc), AtTime(1000)),
        (datetime(2100, 1, 1, 2, 0, 0, 1999, tzinfo=timezone(timedelta(hours=2))), AtTime(4_102_444_800_001)),
    ],
)
def test_bounds(given: object, bound: object) -> None:
    assert as_bound(given) == bound


@pytest.mark.parametrize("given", ["first", 5, None, [], [5], b"x"])
def test_anything_else_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfiguration, match="is no bound: give 'earliest'"):
        as_bound(given)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="no time zone"):
        as_bound(datetime(2024, 1, 1))  # noqa: DTZ001


def test_message_ids_are_per_partition() -> None:
    bound = AtMessages((_FIRST, _SECOND))
    assert bound.of_partition(1) is _SECOND
    with pytest.raises(InvalidConfiguration, match="bound partitions 0, 1, not partition 2"):
        bound.of_partition(2)
