"""Blocks of a producer that wait for receipts: order, resending, and how many may be under way."""

from __future__ import annotations

from pulsar_ray.client.producer.unconfirmed_blocks import UnconfirmedBlock, UnconfirmedBlocks
from pulsar_ray.managed_ledger.log.producer_incarnations import WINDOW_BLOCKS


def ignore(*_: object) -> None:
    pass


def pending(count: int) -> UnconfirmedBlocks:
    blocks = UnconfirmedBlocks()
    for seq in range(count):
        blocks.add(UnconfirmedBlock(seq, 1, 1, [], 10, 0.0, ignore))
    return blocks


def written(blocks: UnconfirmedBlocks) -> list[int]:
    taken = []
    while (block := blocks.next_unsent()) is not None:
        taken.append(block.entry_seq)
    return taken


def test_no_more_are_under_way_than_the_partition_remembers() -> None:
    blocks = pending(WINDOW_BLOCKS + 3)
    assert written(blocks) == list(range(WINDOW_BLOCKS))
    assert not blocks.has_unsent
    settled = [*blocks.confirm([(7, 0, 1, 1, 0)]), *blocks.confirm([(7, 1, 1, 1, 1)])]
    assert [block.entry_seq for block in settled] == [0, 1]
    assert written(blocks) == [WINDOW_BLOCKS, WINDOW_BLOCKS + 1]
    blocks.resend()
    assert written(blocks) == list(range(2, WINDOW_BLOCKS + 2))


def test_receipts_of_one_packet_may_come_in_any_order_and_again() -> None:
    blocks = pending(4)
    written(blocks)
    settled = blocks.confirm([(7, seq, 1, 1, seq) for seq in (2, 0, 0, 9, 1)])
    assert [block.entry_seq for block in settled] == [0, 1, 2]
    settled = blocks.confirm([(7, seq, 1, 1, seq) for seq in (0, 3)])
    assert [block.entry_seq for block in settled] == [3]


def test_answers_wait_for_earlier_ones() -> None:
    blocks = pending(3)
    assert written(blocks) == [0, 1, 2]
    assert blocks.confirm([(7, 1, 1, 1, 1)]) == []
    settled = blocks.confirm([(7, 0, 1, 1, 0)])
    assert [block.entry_seq for block in settled] == [0, 1]
    assert blocks.confirm([(7, 0, 1, 1, 0)]) == []
    assert (len(blocks), blocks.messages, blocks.size, blocks.sent) == (1, 1, 10, 1)
