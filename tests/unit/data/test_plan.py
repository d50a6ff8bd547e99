from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import pytest

from pulsar_ray.data.planning.plan import AtMessages, AtSubscription, AtTime, as_bound, as_topics
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import MessageId

_NOW_MS = 1_700_000_000_000
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
        (timedelta(minutes=10), AtTime(_NOW_MS - 600_000)),
        (timedelta(0), AtTime(_NOW_MS)),
        (datetime(2100, 1, 1, 2, 0, 0, 1999, tzinfo=timezone(timedelta(hours=2))), AtTime(4_102_444_800_001)),
    ],
)
def test_bounds(given: object, bound: object) -> None:
    assert as_bound(given, _NOW_MS) == bound


@pytest.mark.parametrize("given", ["first", 5, None, [], [5], b"x"])
def test_anything_else_is_refused(given: object) -> None:
    with pytest.raises(InvalidConfiguration, match="is no bound: give 'earliest'"):
        as_bound(given, _NOW_MS)


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="no time zone"):
        as_bound(datetime(2024, 1, 1), _NOW_MS)  # noqa: DTZ001


def test_message_ids_are_per_partition() -> None:
    bound = AtMessages((_FIRST, _SECOND))
    assert bound.of_partition(1) is _SECOND
    with pytest.raises(InvalidConfiguration, match="bound partitions 0, 1, not partition 2"):
        bound.of_partition(2)


def test_a_time_that_lies_ahead_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="lies ahead: a timedelta says how long ago"):
        as_bound(timedelta(seconds=-1), _NOW_MS)


def test_topics_are_a_name_names_or_a_pattern() -> None:
    pattern = re.compile("orders-.*")
    assert as_topics("orders") == ["orders"]
    assert as_topics(("orders", "clicks", "orders")) == ["orders", "clicks"]
    assert as_topics(pattern) is pattern
    with pytest.raises(InvalidConfiguration, match="no topic to read: give a name"):
        as_topics([])
    for wrong in ([pattern], None, 5):
        with pytest.raises(InvalidConfiguration, match="is no topic: give names, or one compiled pattern"):
            as_topics(wrong)  # type: ignore[arg-type]
