"""What a dispatcher tells its partition, also when the carrier between them is lost."""

from __future__ import annotations

from typing import Any, cast

from pulsar_ray.broker.subscription.log.partition_link import PartitionFollower, PartitionLink
from pulsar_ray.model.message_id import Position
from pulsar_ray.session.requests import MoveHold
from pulsar_ray.transport.cluster import AttachReply


class Link:
    """A link that notes what is sent."""

    def __init__(self) -> None:
        self.holds: list[MoveHold] = []

    def send(self, request: Any) -> None:
        if isinstance(request, MoveHold):
            self.holds.append(request)


class Attached:
    epoch = 3


def attach_again(follower: PartitionFollower) -> None:
    follower.reopen(cast("AttachReply", Attached()))


def test_a_hold_that_may_be_lost_with_its_carrier_is_reported_again() -> None:
    link = Link()
    follower = PartitionFollower(cast("PartitionLink", link), lambda _: None)
    follower.follow(7, armed=True)
    attach_again(follower)
    assert link.holds == []
    follower.move_hold(Position(1, 4))
    follower.move_hold(Position(1, 6))
    attach_again(follower)
    assert link.holds == [MoveHold(7, 1, 4), MoveHold(7, 1, 6), MoveHold(7, 1, 6)]


def test_a_hold_from_before_a_seek_is_not_reported_behind_it() -> None:
    link = Link()
    follower = PartitionFollower(cast("PartitionLink", link), lambda _: None)
    follower.follow(7, armed=True)
    follower.move_hold(Position(1, 6))
    follower.forget_hold()
    attach_again(follower)
    assert link.holds == [MoveHold(7, 1, 6)]
