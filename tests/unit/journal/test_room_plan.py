"""Which segments of a node's partitions leave a disk that is too full."""

from __future__ import annotations

import random

from pulsar_ray.journal.offloaded.room_plan import FREED_WITHIN_S, STALE_S, Offer, RoomPlan

FULL = (900, 1000)
LOOK_S = 10.0


def offers(*times: float, size: int = 10) -> list[Offer]:
    return [Offer(at, f"1-{place}.seg", size) for place, at in enumerate(times)]


def test_the_oldest_of_all_partitions_leave_and_no_more_than_have_to() -> None:
    plan = RoomPlan()
    old, young = offers(1, 2, 3, 50), offers(40, 60)
    assert plan.asked("old", FULL, 88, old, 0) == []
    assert plan.asked("young", FULL, 88, young, 3) == []
    # 880 and less is free enough: the third one brings it there.
    assert plan.asked("old", FULL, 88, old, LOOK_S) == ["1-0.seg", "1-1.seg", "1-2.seg"]
    assert plan.asked("young", FULL, 88, young, LOOK_S + 3) == []


def test_whoever_asks_first_waits_until_all_others_were_heard() -> None:
    plan = RoomPlan()
    assert plan.asked("young", FULL, 89, offers(40), 0) == []
    assert plan.asked("old", FULL, 89, offers(1, 2), 9) == []
    assert plan.asked("young", FULL, 89, offers(40), 10) == []
    assert plan.asked("old", FULL, 89, offers(1, 2), 19) == ["1-0.seg", "1-1.seg"]


def test_what_is_leaving_counts_as_free_until_its_partition_asks_again() -> None:
    plan = RoomPlan()
    plan.asked("a", FULL, 90, offers(1), 0)
    for now in (1.0, 10.0):
        assert plan.asked("b", FULL, 90, offers(5, 6), now) == []
    assert plan.asked("a", FULL, 90, offers(1), 11) == ["1-0.seg"]
    assert plan.asked("b", FULL, 90, offers(5, 6), 20) == []
    # It could not leave, and has nothing to offer any more.
    assert plan.asked("a", FULL, 90, [], 31) == []
    assert plan.asked("b", FULL, 90, offers(5, 6), 32) == ["1-0.seg"]


def test_a_partition_that_is_gone_keeps_nothing_from_leaving() -> None:
    plan = RoomPlan()
    for now in (0.0, 10.0):
        plan.asked("gone", FULL, 90, offers(1), now)
    now = 10.0
    answers: list[list[str]] = []
    while now < 10 + FREED_WITHIN_S + 2 * STALE_S:
        answers.append(plan.asked("stays", FULL, 90, offers(5), now))
        now += LOOK_S
    assert answers[1] == []
    assert answers[-1] == ["1-0.seg"]


def test_each_topic_has_its_own_percent() -> None:
    plan = RoomPlan()
    for now in (0.0, 10.0):
        kept = plan.asked("kept", FULL, 95, offers(1, 2), now)
        goes = plan.asked("goes", FULL, 90, offers(5, 6), now)
    assert (kept, goes) == ([], ["1-0.seg"])


def test_a_log_leaves_from_its_beginning_whatever_its_files_say() -> None:
    plan = RoomPlan()
    for now in (0.0, 10.0):
        brought_back = plan.asked("a", FULL, 90, offers(99, 1), now)
        other = plan.asked("b", FULL, 90, offers(50), now)
    assert (brought_back, other) == ([], ["1-0.seg"])


def test_together_partitions_free_what_has_to_be_freed_and_less_than_one_segment_more() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(50):
        plan, used, total, percent = RoomPlan(), 10_000, 10_000, rng.randrange(50, 99)
        logs = {
            str(number): offers(*sorted(rng.uniform(0, 100) for _ in range(40)), size=rng.randrange(5, 50))
            for number in range(rng.randrange(1, 12))
        }
        bound, now, quiet = total * percent // 100, 0.0, 0
        while quiet < 3:
            quiet += 1
            for partition in rng.sample(sorted(logs), len(logs)):
                now += LOOK_S / len(logs)
                if used < bound:
                    continue
                going = plan.asked(partition, (used, total), percent, logs[partition], now)
                left = [offer for offer in logs[partition] if offer.name in going]
                logs[partition] = [offer for offer in logs[partition] if offer.name not in going]
                used -= sum(offer.bytes for offer in left)
                quiet = 0 if left else quiet
        assert used < bound or not any(logs.values())
        assert used >= bound - 50
