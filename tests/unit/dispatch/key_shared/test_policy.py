"""Key_Shared: keys stay with their consumers, and only what moves waits."""

from __future__ import annotations

import pytest

from pulsar_ray.dispatch.consumer import ConsumerExit
from pulsar_ray.dispatch.inspect.key_stats import key_owner, key_shared_consumer_stats, key_shared_stats
from pulsar_ray.dispatch.inspect.why_blocked import why_blocked
from pulsar_ray.dispatch.key_shared.hash_regions import KeySharedSpec
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import (
    ConsumerAssignError,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    NotAllowedError,
)
from pulsar_ray.model.enums import ConsumerType, KeySharedMode
from tests.unit.dispatch.keys_rig import KeysRig
from tests.unit.dispatch.rig import Rig

DIGITS = list("0123456789")
RING_OF_TEN = DispatchSettings(key_shared_replica_points=10)
OUT_OF_ORDER = KeySharedSpec(allow_out_of_order_delivery=True)


def sticky(*ranges: tuple[int, int]) -> KeySharedSpec:
    return KeySharedSpec(KeySharedMode.Sticky, sticky_ranges=ranges)


def ring_with_c1_holding_all() -> KeysRig:
    """c1 has "0".."9" twice when c2 comes, and ten more wait to be sent."""
    keys = KeysRig(DIGITS * 3, per_block=5, settings=RING_OF_TEN)
    later, keys.rig.refs = keys.rig.refs[4:], keys.rig.refs[:4]
    keys.add(1)
    assert len(keys.granted()[1]) == 20
    keys.add(2)
    keys.rig.refs += later
    return keys


@pytest.mark.parametrize("per_block", [1, 3, 10, 40])
def test_each_key_has_one_consumer_and_rows_of_one_block_go_out_as_ranges(per_block: int) -> None:
    keys = KeysRig(DIGITS * 4, per_block)
    keys.add(1)
    keys.add(2)
    # Slots from 32768 on are c1's.
    assert keys.granted() == {1: list("0123479") * 4, 2: list("568") * 4}


def test_the_documented_draining_hashes() -> None:
    keys = ring_with_c1_holding_all()
    assert keys.granted() == {1: list("01256")}
    assert keys.draining(1) == {2862: 2, 11707: 2, 15786: 2, 43539: 2, 45436: 2}
    assert keys.draining(2) == {}
    assert all(
        drain["blockedAttempts"] > 0
        for drain in key_shared_consumer_stats(keys.dispatcher, 1)["drainingHashes"]
    )
    stats = key_shared_stats(keys.dispatcher)
    assert stats["keySharedMode"] == "AUTO_SPLIT"
    assert stats["drainingHashesCount"] == 5
    assert stats["drainingHashesUnackedMessages"] == 10
    assert stats["drainingHashesClearedTotal"] == 0
    assert stats["msgInReplay"] == 5


def test_a_hash_flows_to_its_new_consumer_with_the_last_acknowledgment() -> None:
    keys = ring_with_c1_holding_all()
    keys.granted()
    keys.acknowledge(1, 9)
    assert keys.draining(1)[2862] == 1
    assert keys.granted() == {}
    keys.acknowledge(1, 19)
    assert 2862 not in keys.draining(1)
    assert keys.granted() == {2: ["9"]}
    assert key_shared_consumer_stats(keys.dispatcher, 1)["drainingHashesClearedTotal"] == 1


def test_what_comes_back_of_a_draining_hash_goes_to_the_new_consumer_before_newer_ones() -> None:
    keys = ring_with_c1_holding_all()
    keys.granted()
    keys.dispatcher.redeliver_unacknowledged(1, 100)
    granted = keys.entries()
    assert [entry for entry in granted[2] if keys.keys[entry] == "9"] == [9, 19, 29]
    assert granted[2] == sorted(granted[2])
    assert keys.draining(1) == {}


def test_hashes_that_return_to_their_consumer_do_not_wait() -> None:
    keys = ring_with_c1_holding_all()
    keys.granted()
    keys.dispatcher.remove_consumer(2, ConsumerExit.CLOSED)
    assert keys.granted() == {1: list("34789")}
    assert keys.draining(1) == {}


def test_the_messages_of_a_consumer_that_left_go_to_the_new_owners_in_order() -> None:
    keys = KeysRig(DIGITS * 3, settings=DispatchSettings())
    keys.add(1)
    keys.add(2)
    first = keys.entries()
    keys.dispatcher.remove_consumer(2, ConsumerExit.CRASHED, handed_over=0)
    assert keys.entries() == {1: first[2]}


def test_suspects_go_in_halves_to_the_owners_of_their_keys_and_hold_back_their_keys_alone() -> None:
    keys = KeysRig([*"5568", *"5501234"])
    keys.add(1, credit=0)
    keys.add(2, credit=4)
    assert keys.granted() == {2: list("5568")}
    keys.dispatcher.remove_consumer(2, ConsumerExit.CRASHED)
    keys.rig.report(1, 1000)
    assert keys.granted() == {1: list("01234")}, "the other keys go on"
    for entry in range(6, 11):
        keys.acknowledge(1, entry)
    assert keys.entries() == {1: [0, 1]}, "the first half of what the crashed consumer had, alone"
    keys.acknowledge(1, 0)
    assert keys.granted() == {}
    keys.acknowledge(1, 1)
    assert keys.entries() == {1: [4, 5]}, "before the second half others have their turn"
    keys.acknowledge(1, 4)
    keys.acknowledge(1, 5)
    assert keys.entries() == {1: [2, 3]}


def test_a_nacked_message_comes_back_to_the_owner_and_blocks_nobody() -> None:
    keys = KeysRig(["5", "0", "5", "0"])
    keys.add(1)
    keys.add(2)
    assert keys.entries() == {2: [0, 2], 1: [1, 3]}
    keys.nack(2, 0)
    assert keys.entries() == {2: [0]}
    assert keys.dispatcher.cursor.counts.of(1, 0) == 1


def test_rows_with_different_counts_keep_their_order() -> None:
    keys = KeysRig(["5"] * 6, per_block=6)
    keys.add(1)
    assert keys.entries() == {1: list(range(6))}
    keys.nack(1, 1, 4)
    keys.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    keys.add(2)
    grants = keys.rig.grants()
    assert [(grant.rows, grant.redelivery_count) for grant in grants] == [
        (((0, 1),), 0), (((1, 2),), 1), (((2, 4),), 0), (((4, 5),), 1), (((5, 6),), 0),
    ]  # fmt: skip


def test_a_consumer_without_permits_stops_its_own_keys_only_until_too_many_wait() -> None:
    settings = DispatchSettings(look_ahead_messages_per_consumer=20)
    keys = KeysRig(["0", "5"] * 100, per_block=10, settings=settings)
    keys.add(1, credit=3)
    keys.add(2, credit=30)
    assert keys.dispatcher.blocks_wanted() == 66
    granted = keys.granted()
    assert granted == {1: ["0"] * 3, 2: ["5"] * 30}
    keys.rig.report(2, 100)
    assert keys.granted() == {2: ["5"] * 70}
    assert keys.dispatcher.blocks_wanted() == 0
    told = why_blocked(keys.dispatcher, 0)
    assert told["reason"] == "consumer c1: its receiver queue is full"
    assert told["consumers"][0]["waitingMessages"] == 97


def test_rows_of_a_block_wait_for_credit_rather_than_be_cut() -> None:
    keys = KeysRig(DIGITS * 200, per_block=400)
    keys.add(1, credit=1000)
    keys.add(2, credit=1000)
    assert keys.granted() == {1: list("0123479") * 120, 2: list("568") * 200}, "280 of each block, and all"
    keys.rig.report(1, 1119, handed_over=119)
    assert keys.granted() == {}, "279 would fit"
    keys.rig.report(1, 1399, handed_over=399)
    assert keys.granted() == {1: list("0123479") * 40}
    keys.rig.report(1, 1400, handed_over=400)
    assert keys.granted() == {1: list("0123479") * 40}


def test_a_queue_that_may_hold_less_is_filled_all_the_same() -> None:
    keys = KeysRig(["5"] * 510 + ["6", "8"] * 247, per_block=510)
    keys.add(1, credit=0)
    keys.add(2, credit=1000)
    assert len(keys.entries()[2]) == 510, "the others wait for credit"
    keys.rig.report(2, credit=610, received=1, handed_over=510)
    assert len(keys.entries()[2]) == 490, "not half of a queue of 100: they are cut"


def test_rows_that_waited_go_when_acknowledgments_make_room() -> None:
    settings = DispatchSettings(max_unacked_messages_per_consumer=300)
    keys = KeysRig(DIGITS * 80, per_block=400, settings=settings)
    keys.add(1, credit=1000)
    keys.add(2, credit=1000)
    first = keys.entries()[1]
    assert len(first) == 300, "a limit cuts: nobody knows whether more is ever acknowledged"
    keys.acknowledge(1, *first)
    assert len(keys.entries()[1]) == 260


def test_a_full_queue_is_the_reason_also_before_anything_was_read() -> None:
    keys = KeysRig(["0"] * 8)
    keys.add(1, credit=0)
    told = why_blocked(keys.dispatcher, 0)
    assert told["waitingMessages"] == 0
    assert told["reason"] == "consumer c1: its receiver queue is full"


def test_blocked_messages_are_read_past_up_to_a_limit() -> None:
    keys = KeysRig(["0"] * 60, per_block=10, settings=DispatchSettings(look_ahead_messages_per_consumer=15))
    keys.add(1, credit=0)
    keys.add(2, credit=1)
    assert keys.dispatcher.blocks_wanted() == 30
    keys.granted()
    assert keys.dispatcher.blocks_wanted() == 0
    both_off = DispatchSettings(look_ahead_messages_per_consumer=0, look_ahead_messages_per_subscription=0)
    unlimited = KeysRig([], settings=both_off)
    unlimited.add(1, credit=1)
    assert unlimited.dispatcher.blocks_wanted() == 65_536


@pytest.mark.parametrize("credit", [1_000_000, 1 << 60])
def test_no_credit_makes_it_read_more_than_so_much_at_once(credit: int) -> None:
    keys = KeysRig(["0"] * 8, per_block=8)
    keys.add(1, credit=credit)
    assert keys.dispatcher.blocks_wanted() == 65_536
    keys.rig.offer()
    assert keys.dispatcher.blocks_wanted() == 65_536 - 8


def test_the_log_is_read_in_portions_unless_somebody_wants_more_than_was_read() -> None:
    keys = KeysRig(
        ["0", "5"] * 100, per_block=10, settings=DispatchSettings(look_ahead_messages_per_consumer=50)
    )
    later, keys.rig.refs = keys.rig.refs[10:], keys.rig.refs[:10]
    keys.add(1, credit=20)
    keys.add(2, credit=20)
    assert keys.dispatcher.blocks_wanted() == 100
    assert keys.granted() == {1: ["0"] * 20, 2: ["5"] * 20}
    keys.rig.report(2, 25)
    assert keys.dispatcher.blocks_wanted() == 0, "60 of 100 wait, and 5 are wanted"
    assert keys.granted() == {2: ["5"] * 5}
    keys.rig.report(2, 45)
    assert keys.granted() == {2: ["5"] * 20}
    assert keys.dispatcher.blocks_wanted() == 0, "nobody has room"
    keys.rig.report(2, 51)
    assert keys.granted() == {2: ["5"] * 5}
    assert keys.dispatcher.blocks_wanted() == 70, "30 wait, all of them for c1: c2 wants one more"
    keys.rig.refs += later[:7]
    assert keys.granted() == {2: ["5"]}
    assert keys.dispatcher.blocks_wanted() == 0
    keys.rig.report(2, 86)
    assert keys.granted() == {2: ["5"] * 34}
    assert keys.dispatcher.blocks_wanted() == 35
    keys.rig.report(1, 50)
    assert keys.granted() == {1: ["0"] * 30}


def test_a_batch_goes_whole_to_the_owner_of_its_key() -> None:
    rig = Rig([-8, -8], slots=[13796, 49279])
    rig.add(1, 3, ConsumerType.KeyShared)
    rig.add(2, 3, ConsumerType.KeyShared)
    assert rig.told() == [(2, 0, ((0, 8),)), (1, 1, ((0, 8),))]


def test_out_of_order_delivery_does_not_wait_for_draining_hashes() -> None:
    keys = KeysRig(DIGITS * 2, settings=RING_OF_TEN)
    later, keys.rig.refs = keys.rig.refs[3:], keys.rig.refs[:3]
    keys.add(1)
    keys.granted()
    keys.add(2, spec=OUT_OF_ORDER)
    keys.rig.refs += later
    assert sorted(set(keys.granted()[2])) == list("34789")
    assert keys.draining(1) == {}
    assert key_shared_stats(keys.dispatcher)["allowOutOfOrderDelivery"] is True
    # Whoever wants order waits for both.
    keys.add(3)
    moved = set(keys.draining(1)) & set(keys.draining(2))
    assert all(key_owner(keys.dispatcher, key)["owner"] == "c3" for key in DIGITS
               if key_owner(keys.dispatcher, key)["hash"] in moved)  # fmt: skip


def test_slots_nobody_declares_wait_alone_until_somebody_does() -> None:
    keys = KeysRig(DIGITS * 2)
    keys.add(1, spec=sticky((40000, 65535)))
    assert keys.granted() == {1: list("012349") * 2}
    keys.rig.now_ms = 700
    told = why_blocked(keys.dispatcher, 700)
    assert {one["hash"] for one in told["hashes"]} == {13796, 31936, 34344, 23}
    assert all(one["owner"] is None and one["heldBy"] == [] for one in told["hashes"])
    assert "no sticky consumer declares it" in told["reason"]
    keys.add(2, spec=sticky((0, 23), (31936, 34344)))
    assert keys.granted() == {2: list("678") * 2}
    keys.dispatcher.remove_consumer(2, ConsumerExit.CLOSED)
    assert keys.granted() == {}
    keys.add(3, spec=sticky((0, 39999)))
    assert keys.entries() == {3: [5, 6, 7, 8, 15, 16, 17, 18]}


def test_refused_consumers_leave_nothing_behind() -> None:
    keys = KeysRig(DIGITS)
    keys.add(1, spec=sticky((0, 100)))
    with pytest.raises(ConsumerAssignError, match="overlaps"):
        keys.add(2, spec=sticky((100, 200)))
    with pytest.raises(ConsumerBusy, match="AutoSplit"):
        keys.add(3)
    with pytest.raises(ConsumerBusy, match="KeyShared"):
        keys.rig.add(4, 0, ConsumerType.Shared)
    assert list(keys.dispatcher.consumers) == [1]
    keys.add(5, spec=sticky((101, 200)))
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        keys.dispatcher.acknowledge(1, cumulative=(1, 0, -1))


def test_the_type_and_the_ring_may_change_when_all_have_left() -> None:
    keys = KeysRig(DIGITS)
    keys.rig.add(1, 3, ConsumerType.Shared)
    assert len(keys.rig.told()) == 1
    keys.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    keys.add(2)
    assert keys.granted() == {2: DIGITS}
    keys.acknowledge(2, 0, 1, 2)
    keys.dispatcher.remove_consumer(2, ConsumerExit.CLOSED)
    keys.rig.add(3, 100, ConsumerType.Shared)
    assert [
        row for _, first, rows in keys.rig.told() for a, b in rows for row in range(first + a, first + b)
    ] == [*range(3, 10)]


def test_keys_go_to_their_owners_after_all_consumers_were_replaced() -> None:
    keys = KeysRig(DIGITS, per_block=10)
    lower, upper = sticky((0, 32_767)), sticky((32_768, 65_535))
    keys.add(1, spec=lower)
    keys.add(2, spec=upper)
    before = keys.granted()
    assert set(before) == {1, 2}
    keys.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    keys.dispatcher.remove_consumer(2, ConsumerExit.CLOSED)
    keys.add(3, spec=upper)
    keys.add(4, spec=sticky((0, 4_000)))
    keys.add(5, spec=sticky((4_001, 32_767)))
    assert before[1] == ["5", "6", "8"]
    assert keys.granted() == {3: before[2], 4: ["8"], 5: ["5", "6"]}


def test_max_unacked_messages_of_a_consumer_hold() -> None:
    keys = KeysRig(DIGITS * 4, settings=DispatchSettings(max_unacked_messages_per_consumer=6))
    keys.add(1)
    keys.add(2)
    assert {consumer: len(got) for consumer, got in keys.granted().items()} == {1: 6, 2: 6}
    told = why_blocked(keys.dispatcher, 0)
    assert "max_unacked_messages_per_consumer" in told["reason"]
    keys.acknowledge(2, 5, 6, 8)
    assert keys.granted() == {2: list("568")}


def test_why_blocked_names_hash_consumer_messages_and_time() -> None:
    keys = ring_with_c1_holding_all()
    keys.rig.now_ms = 5_000
    keys.granted()
    told = why_blocked(keys.dispatcher, 7_000)
    assert told["type"] == "Key_Shared"
    assert told["hashesNotShown"] == 0
    blocked = next(one for one in told["hashes"] if one["hash"] == 2862)
    assert blocked == {
        "hash": 2862,
        "reason": "moved to c2 and still drains at c1 (2 unacknowledged)",
        "owner": "c2",
        "heldBy": [{"consumerName": "c1", "unackMsgs": 2, "messageIds": [[1, 9, -1], [1, 19, -1]]}],
        "waitingMessages": 1,
        "firstWaiting": [1, 29, -1],
        "blockedMs": 2_000,
    }
    assert key_owner(keys.dispatcher, "9") == {"key": "9", "hash": 2862, "owner": "c2", "drainedBy": ["c1"]}
    keys.acknowledge(1, *range(20))
    keys.granted()
    assert why_blocked(keys.dispatcher, 8_000)["hashes"] == []


def test_who_owns_a_key_is_known_for_key_shared_only() -> None:
    keys = KeysRig(DIGITS)
    assert key_owner(keys.dispatcher, "Order-3459134")["owner"] is None
    for incarnation in (1, 2, 3, 4):
        keys.add(incarnation)
    assert key_owner(keys.dispatcher, "Order-3459134") == {
        "key": "Order-3459134", "hash": 6067, "owner": "c3", "drainedBy": [],
    }  # fmt: skip
    assert key_shared_consumer_stats(keys.dispatcher, 4)["keyHashRangeArrays"] == [[32768, 49151]]
    shared = Rig([])
    shared.add(1)
    with pytest.raises(NotAllowedError):
        key_owner(shared.dispatcher, "k")
    assert key_shared_consumer_stats(shared.dispatcher, 1) == key_shared_stats(shared.dispatcher) == {}


def test_a_restart_keeps_a_key_with_who_says_it_has_it() -> None:
    keys = KeysRig(DIGITS * 2)
    dispatcher = keys.dispatcher
    # Both were there before; they come back the other way round, so that their ranges are swapped.
    for incarnation, held in ((2, [(1, 4, ((1, 2),))]), (1, [(1, 0, ((0, 4),))])):
        spec = keys.rig.add(incarnation, 0, ConsumerType.KeyShared)
        dispatcher.remove_consumer(incarnation, ConsumerExit.CLOSED)
        dispatcher.attach_consumer(spec, 0, held=held)
        keys.rig.report(incarnation, 1000)
    keys.rig.offer()
    owner = {key: key_owner(dispatcher, key)["owner"] for key in DIGITS}
    assert owner["5"] == "c1"
    assert owner["0"] == "c2"
    granted = keys.granted()
    assert "5" not in granted[1]
    assert not set(granted[2]) & set("0123")
    keys.acknowledge(2, 5)
    assert keys.granted() == {1: ["5"]}
