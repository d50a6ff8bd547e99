from __future__ import annotations

import asyncio

import pytest

from pulsar_ray.actors.topic_actors import LOOK_UPS, look_up_again
from pulsar_ray.errors import Moved


class Topic:
    """Is deleted during the first `deletions` look-ups."""

    def __init__(self, deletions: int) -> None:
        self.deletions = deletions
        self.look_ups = 0

    async def look_up(self) -> str:
        self.look_ups += 1
        if self.look_ups <= self.deletions:
            raise Moved("it was deleted just now")
        return "its partitions"


@pytest.mark.parametrize("deletions", [0, 1, LOOK_UPS - 1])
def test_a_topic_that_was_deleted_in_between_is_looked_up_again(deletions: int) -> None:
    topic = Topic(deletions)
    assert asyncio.run(look_up_again(topic.look_up)) == "its partitions"
    assert topic.look_ups == deletions + 1


def test_one_that_is_always_deleted_is_left_to_who_asks() -> None:
    topic = Topic(deletions=1_000_000)
    with pytest.raises(Moved):
        asyncio.run(look_up_again(topic.look_up))
    assert topic.look_ups == LOOK_UPS
