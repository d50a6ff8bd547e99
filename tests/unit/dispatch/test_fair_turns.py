"""Shared: nobody who has room falls behind by more than a turn and a batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.settings import DispatchSettings
from tests.unit.dispatch.rig import Rig

TURN = 20
SIZES = st.one_of(
    st.just(1), st.integers(1, 30), st.integers(1, 600), st.integers(-40, -2), st.integers(-900, -2)
)


def log_of(blocks: list[int]) -> list[BlockRef]:
    return Rig(blocks).refs


@given(
    portions=st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=8),
    queues=st.lists(
        st.one_of(st.integers(1, 50), st.integers(1, 1000), st.just(1000)), min_size=2, max_size=5
    ),
    turn=st.sampled_from([1, 5, TURN, 100]),
    limit=st.sampled_from([0, 0, 150, 1500]),
    rate=st.sampled_from([0, 0, 120, 1200]),
)
def test_no_consumer_gets_more_than_a_turn_and_a_batch_above_another_with_room(
    portions: list[list[int]], queues: list[int], turn: int, limit: int, rate: int
) -> None:
    settings = DispatchSettings(
        max_round_robin_batch_size=turn,
        max_unacked_messages_per_subscription=limit,
        dispatch_rate_messages=rate,
    )
    rig = Rig([], settings)
    for incarnation, queue in enumerate(queues, 1):
        rig.add(incarnation, credit=queue)
    sizes = [size for portion in portions for size in portion]
    largest_batch = max((-size for size in sizes if size < 0), default=1)
    refs = iter(log_of(sizes))
    got = dict.fromkeys(range(1, len(queues) + 1), 0)
    for portion in portions:
        rig.refs += [next(refs) for _ in portion]
        rig.cursor.set_ledgers([(1, rig.refs[-1].last_entry_id)])
        rig.now_ms += 10
        for incarnation, messages in rig.shares().items():
            got[incarnation] += messages
        for incarnation, queue in enumerate(queues, 1):
            # Who has more than half of its queue full may wait for a whole block.
            if got[incarnation] <= queue // 2:
                behind = max(got.values()) - got[incarnation]
                assert behind <= turn + largest_batch, (incarnation, got)
