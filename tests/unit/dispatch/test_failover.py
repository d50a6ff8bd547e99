"""Failover: whose turn it is, against a naive rule, and what a hand-over takes back."""

from __future__ import annotations

import random

import pytest

from pulsar_ray.dispatch.consumer import ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.dispatch.subscription_types.failover import elected_index
from pulsar_ray.model.enums import ConsumerType
from tests.unit.dispatch.rig import Rig, dropped

FAILOVER = ConsumerType.Failover
TOPIC = "persistent://public/default/t"


def spec(name: str, level: int = 0, joined: int = 0, *, is_multi_topic: bool = False) -> ConsumerSpec:
    return ConsumerSpec(joined, name, FAILOVER, level, False, joined, is_multi_topic)


def active(specs: list[ConsumerSpec], topic: str = TOPIC) -> str:
    return specs[elected_index(specs, topic)].name


def active_by_partition(specs: list[ConsumerSpec], partitions: int) -> str:
    return "".join(active(specs, f"{TOPIC}-partition-{index}") for index in range(partitions))


def test_two_partitions_and_four_consumers() -> None:
    assert active_by_partition([spec(name) for name in "DBCA"], 2) == "AB"
    assert active_by_partition([spec(name) for name in "DC"], 2) == "CD"


def test_nine_partitions_and_three_consumers() -> None:
    assert active_by_partition([spec(name) for name in "CAB"], 9) == "ABCABCABC"


def test_only_the_best_level_counts() -> None:
    joins = [spec("a", 1), spec("b", 0), spec("c", 0), spec("d", 1)]
    seen = [active_by_partition(joins[:count], 3) for count in range(1, 5)]
    assert seen == ["aaa", "bbb", "bcb", "bcb"]
    assert active_by_partition([joins[0], joins[2], joins[3]], 3) == "ccc"
    assert active_by_partition([joins[0], joins[3]], 3) == "ada"


def test_on_an_unpartitioned_topic_the_first_that_subscribed_of_the_best_level() -> None:
    assert active([spec("b", joined=2), spec("a", joined=3), spec("c", joined=1)]) == "c"
    assert active([spec("c", 1, 1), spec("b", 0, 3), spec("a", 0, 2)]) == "a"


def test_consumers_of_several_topics_are_chosen_by_the_ring_as_pulsar_does() -> None:
    def both(names: str, topic: str) -> str:
        return active([spec(n, joined=9 - i, is_multi_topic=True) for i, n in enumerate(names)], topic)

    assert both("abc", TOPIC) == both("cba", TOPIC) == "b"
    assert [both("AB", f"persistent://public/default/topic-{i}") for i in range(1, 5)] == ["B", "B", "A", "B"]
    mixed = [
        spec("a", joined=2, is_multi_topic=True),
        spec("b", joined=1, is_multi_topic=True),
        spec("c", joined=3),
    ]
    assert active(mixed) == "b", "not all of them are of several topics: the first that subscribed"


def test_equal_names_go_by_the_order_of_subscribing() -> None:
    same = [spec("a", joined=3), spec("a", joined=1), spec("a", joined=2)]
    assert [elected_index(same, f"{TOPIC}-partition-{i}") for i in range(3)] == [1, 2, 0]
    ring = [spec("a", joined=joined, is_multi_topic=True) for joined in (3, 1, 2)]
    assert elected_index(ring, TOPIC) == 1


def naive_choice(specs: list[ConsumerSpec], partition: int) -> int:
    level = 0
    while not any(s.priority_level == level for s in specs):
        level += 1
    best = [s for s in specs if s.priority_level == level]
    if partition >= 0:
        names = sorted((s.name, s.joined) for s in best)
        chosen = names[partition - partition // len(names) * len(names)][1]
    else:
        chosen = sorted(s.joined for s in best)[0]
    return [s.joined for s in specs].index(chosen)


@pytest.mark.parametrize("partitions", [0, 1, 2, 9])
def test_random_comings_and_goings_agree_with_a_naive_rule(partitions: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    specs: list[ConsumerSpec] = []
    for joined in range(1, 400):
        if specs and rng.random() < 0.45:
            specs.remove(rng.choice(specs))
        else:
            specs.append(spec(rng.choice("abcdef") * rng.randint(1, 2), rng.randint(0, 2), joined))
        rng.shuffle(specs)
        for partition in range(partitions) if partitions else (-1,):
            topic = f"{TOPIC}-partition-{partition}" if partitions else TOPIC
            if specs:
                assert elected_index(specs, topic) == naive_choice(specs, partition)


def test_a_displaced_consumer_is_fenced_and_its_messages_come_again_in_order() -> None:
    rig = Rig([4, -3, 4])
    rig.add(1, credit=100, consumer_type=FAILOVER, priority_level=1)
    rig.dispatcher.elect(0)
    assert rig.told() == [(1, 0, ((0, 4),)), (1, 4, ((0, 3),)), (1, 5, ((0, 4),))]
    rig.dispatcher.acknowledge(1, [(1, 1, 1)])
    before = rig.dispatcher.generation
    rig.add(2, credit=100, consumer_type=FAILOVER)
    assert rig.dispatcher.dispatch(0) == [], "it gets nothing before it is its turn"
    assert dropped(rig.dispatcher.elect(0)) == [(1, before + 1), (2, before + 1)]
    assert rig.dispatcher.elect(0) == []
    assert rig.told() == [(2, 0, ((0, 1), (2, 4))), (2, 4, ((0, 3),)), (2, 5, ((0, 4),))]
    rig.dispatcher.acknowledge(1, [(1, 2, 2)])
    assert rig.dispatcher.consumers[2].unacked == 9, "a late acknowledgment of the former one counts"
    assert rig.dispatcher.negative_acknowledge(1, [(1, 3, (), 0)]) == [], "a late negative one does not"
    assert rig.dispatcher.redeliver_unacknowledged(1, 99) == []
    rig.dispatcher.remove_consumer(2, ConsumerExit.CLOSED)
    assert dropped(rig.dispatcher.elect(0)) == [(1, before + 2)]
    assert rig.shares() == {1: 9}


def test_after_a_restart_the_active_one_keeps_what_it_holds() -> None:
    rig = Rig([4, 4])
    for consumer in (1, 2):
        rig.add(consumer, credit=5, consumer_type=FAILOVER)
    rig.dispatcher.elect(0)
    assert rig.shares() == {1: 5}
    again = Rig([4, 4], cursor=rig.cursor)
    again.dispatcher = Dispatcher(rig.cursor, DispatchSettings(), epoch=8, now_ms=0, topic=TOPIC)
    attach = again.dispatcher.attach_consumer
    second, first = (ConsumerSpec(i, f"c{i}", FAILOVER, joined=i) for i in (2, 1))
    attach(second, 0)
    assert again.dispatcher.elect(0) == [], "the first may still come"
    assert again.shares() == {}
    attach(first, 0, held=[(1, 0, [(0, 4)]), (1, 4, [(0, 1)])], received_messages=5)
    assert again.dispatcher.elect(0) == []
    assert again.dispatcher.type.policy.active is again.dispatcher.consumers[1]
    again.report(1, 100)
    assert again.told() == [(1, 4, ((1, 4),))]


def test_what_one_that_stands_by_says_to_hold_comes_to_the_active_one() -> None:
    rig = Rig([4, 4])
    rig.cursor.set_ledgers([(1, 7)])
    rig.add(1, credit=5, consumer_type=FAILOVER)
    rig.dispatcher.elect(0)
    assert rig.shares() == {1: 5}
    generation = rig.dispatcher.generation
    returning = ConsumerSpec(2, "c2", FAILOVER, joined=5)
    rig.dispatcher.attach_consumer(returning, 0, held=[(1, 4, [(2, 4)])])
    assert dropped(rig.dispatcher.elect(0)) == [(1, generation + 1), (2, generation + 1)]
    rig.report(1, 100)
    assert rig.told() == [(1, 0, ((0, 4),)), (1, 4, ((0, 4),))]


def test_the_first_active_consumer_and_every_next_one_get_messages_without_a_wait() -> None:
    rig = Rig([1, 1, 1])
    for consumer in (1, 2):
        rig.add(consumer, 10, FAILOVER)
    rig.dispatcher.elect(rig.now_ms)
    assert rig.shares() == {1: 3}, "no time has passed since it subscribed"
    rig.dispatcher.remove_consumer(1, ConsumerExit.CLOSED)
    rig.dispatcher.elect(rig.now_ms)
    assert rig.shares() == {2: 3}, "nor since it took over"
