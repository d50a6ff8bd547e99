"""One batch receive takes no more than its limits, a larger message alone, and all in their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.client.received.batch_collector import BatchCollector
from pulsar_ray.client.received.message import BlockRows
from pulsar_ray.client.received.receiver_queue import Origin
from tests.unit.client.blocks import received

SIZES = st.one_of(st.integers(0, 300), st.sampled_from([999, 1000, 1001, 5000]))
ORIGIN: Origin = Origin(None, 0)  # type: ignore[arg-type]


def taken(waiting: list[BlockRows], max_messages: int, max_bytes: int) -> list[int]:
    """The sizes of one batch, as a consumer collects it from what waits; the rest goes on waiting."""
    collector = BatchCollector(max_messages, max_bytes, fills=True)
    left_out = 0
    while waiting and not collector.is_full:
        assert not left_out, "nothing is left out while there is room"
        part = waiting.pop(0)
        count = collector.add(part, ORIGIN)
        left_out = len(part.rows) - count
        if left_out:
            waiting.insert(0, BlockRows(part.block, part.rows[count:]))
    return [len(part.block.values[row] or b"") for part in collector.parts for row in part.rows]


@given(
    st.lists(st.tuples(st.lists(SIZES, min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 8))),
    st.integers(1, 12),
    st.sampled_from([1, 500, 1000, 4000, 10**6]),
)
def test_a_batch_keeps_to_its_limits(
    blocks: list[tuple[list[int], int, int]], max_messages: int, max_bytes: int
) -> None:
    waiting = []
    for sizes, start, count in blocks:
        rows = range(min(start, len(sizes) - 1), min(start + count, len(sizes)))
        waiting.append(BlockRows(received([bytes(size) for size in sizes]), rows))
    sent = [len(part.block.values[row] or b"") for part in waiting for row in part.rows]
    got = []
    while waiting:
        batch = taken(waiting, max_messages, max_bytes)
        assert 0 < len(batch) <= max_messages
        assert sum(batch) <= max_bytes or len(batch) == 1
        got += batch
    assert got == sent


def test_a_message_above_the_limit_comes_alone_and_at_once() -> None:
    sizes = [100, 100, 5000, 100, 100, 900, 900, 900]
    waiting = [BlockRows(received([bytes(size)]), range(1)) for size in sizes]
    batches = []
    while waiting:
        batches.append(taken(waiting, 2**31, 1000))
    assert batches[:2] == [[100, 100], [5000]]
    assert [size for batch in batches for size in batch] == sizes
