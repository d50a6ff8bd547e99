"""Whether a producer may send to its partition."""

from __future__ import annotations

import pytest

from pulsar_ray.client.producer.blocks.block_numbers import BlockNumbers
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.client.producer.queue.partition_access import PATIENCE_S, SILENCE_S, PartitionAccess
from pulsar_ray.errors import AlreadyClosed, WrongNode
from tests.unit.client.producer.publishing_link import PublishingLink


class Accessed:
    """One producer's access, and the parts it looks at."""

    def __init__(self) -> None:
        self.link = PublishingLink()
        self.numbers = BlockNumbers()
        self.unconfirmed = UnconfirmedBlocks()
        self.access = PartitionAccess(self.link, self.numbers, self.unconfirmed)

    def lose_carrier(self, before_s: float) -> None:
        """The carrier was lost so long ago."""
        self.access.lost_carrier()
        self.access.closed_at_s -= before_s


def test_on_a_carrier_the_partition_is_there_and_knows_what_was_replaced() -> None:
    it = Accessed()
    it.numbers.renew()
    it.access.open_on("first")  # type: ignore[arg-type]
    assert it.access.is_open
    assert it.numbers.replaces == 0
    it.link.absence = WrongNode("a late word")
    it.access.ensure()
    assert it.access.absence is None
    it.access.suspend()
    assert [it.access.is_open, it.access.carrier] == [False, "first"]
    it.access.lost_carrier()
    assert it.access.carrier is None


def test_a_partition_that_is_away_refuses() -> None:
    it = Accessed()
    it.access.await_opening(WrongNode("its node is away"))
    with pytest.raises(WrongNode, match="its node is away"):
        it.access.ensure()
    assert not it.access.takes_keyless
    it.access.answered()
    it.access.ensure()
    it.link.absence = WrongNode("gone again")
    with pytest.raises(WrongNode, match="gone again"):
        it.access.ensure_there()


@pytest.mark.parametrize(
    ("silent_s", "is_parked", "takes"),
    [(0.0, False, True), (PATIENCE_S + 1, False, False), (PATIENCE_S + 1, True, True)],
)
def test_keyless_messages_come_for_a_while_after_the_carrier_is_lost_and_to_one_that_sleeps(
    silent_s: float, is_parked: bool, takes: bool
) -> None:
    it = Accessed()
    it.lose_carrier(silent_s)
    it.link.is_parked = is_parked
    assert it.access.takes_keyless == takes


@pytest.mark.parametrize(
    ("silent_s", "unconfirmed", "is_new"),
    [(0.0, 0, False), (SILENCE_S + 1, 0, True), (SILENCE_S + 1, 1, False)],
)
def test_a_partition_that_sleeps_is_woken_and_after_long_silence_counted_for_anew(
    silent_s: float, unconfirmed: int, is_new: bool
) -> None:
    it = Accessed()
    former = it.numbers.incarnation
    for seq in range(unconfirmed):
        it.unconfirmed.add(UnconfirmedBlock(seq, 1, 1, [], 1, 0.0, lambda *_: None))
    it.lose_carrier(silent_s)
    it.link.is_parked = True
    it.access.ensure_there()
    assert it.link.begins_to_attach == 1
    assert (it.numbers.incarnation != former) == is_new


def test_after_the_end_everything_raises_its_reason() -> None:
    it = Accessed()
    it.access.open_on("first")  # type: ignore[arg-type]
    it.access.end(AlreadyClosed("closed"))
    for call in (it.access.ensure, it.access.raise_if_ended):
        with pytest.raises(AlreadyClosed):
            call()
    assert not it.access.is_open
