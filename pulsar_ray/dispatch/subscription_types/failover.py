"""Failover: the active consumer gets everything, in order; the others stand by.

The active one is a function of the consumers that are there, and elected anew whenever one comes or goes
(Pulsar's documentation on Failover; for several topics the ring of its ConsistentHashingTopicRouter).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

import mmh3

from pulsar_ray.dispatch.consumer import Consumer, ConsumerSpec
from pulsar_ray.dispatch.subscription_types.single_active import SingleActivePolicy
from pulsar_ray.model.topic_name import TopicName

RING_POINTS = 100
_POSITIVE = 0x7FFFFFFF


class FailoverPolicy(SingleActivePolicy):
    """Grants to the elected consumer. Nobody is active between a change and `elect`."""

    def __init__(self) -> None:
        super().__init__()
        self._candidates: list[Consumer] = []
        self.elected: Consumer | None = None
        """The outcome of the last election; it may have left since."""

    def admit(self, spec: ConsumerSpec, present: Collection[Consumer]) -> None:
        """Everybody is welcome."""

    def join(self, consumer: Consumer) -> None:
        self._candidates.append(consumer)
        self.must_elect = True

    def leave(self, consumer: Consumer) -> None:
        super().leave(consumer)
        self._candidates.remove(consumer)
        self.must_elect = True

    def elect(self, topic: str) -> Consumer | None:
        """Make the consumer active whose turn it is on this partition; None if nobody is."""
        self.must_elect = False
        specs = [consumer.spec for consumer in self._candidates]
        self.active = self._candidates[elected_index(specs, topic)] if specs else None
        self.elected = self.active
        return self.active


def elected_index(specs: Sequence[ConsumerSpec], topic: str) -> int:
    """Which of these consumers is the active one of `topic`, a partition's own full name.

    Of those of the best (lowest) priority level: on partition i the i-mod-n-th by name; on an unpartitioned
    topic the first that subscribed, or, if all of them are of consumers of several topics, the one that a
    hash ring of consumer names gives for the topic's name. Of equal names the first that subscribed counts.
    """
    best_level = min(spec.priority_level for spec in specs)
    best = [index for index, spec in enumerate(specs) if spec.priority_level == best_level]
    by_name = sorted(best, key=lambda index: (specs[index].name, specs[index].joined))
    partition = TopicName.parse(topic).partition_index
    if partition >= 0:
        return by_name[partition % len(by_name)]
    if all(specs[index].is_multi_topic for index in best):
        return by_name[_on_ring([specs[index].name for index in by_name], topic)]
    return min(best, key=lambda index: specs[index].joined)


def _on_ring(names: Sequence[str], topic: str) -> int:
    """Return the index of the name whose point follows the topic's hash.

    Of colliding points the last name's counts.
    """
    points: dict[int, int] = {}
    for index, name in enumerate(names):
        if index and names[index - 1] == name:
            continue
        points.update(dict.fromkeys((_hash(f"{name}{number}") for number in range(RING_POINTS)), index))
    ring = sorted(points)
    return points[ring[bisect_left(ring, _hash(topic)) % len(ring)]]


def _hash(text: str) -> int:
    return mmh3.hash(text.encode("utf-8", "surrogatepass"), 0, signed=False) & _POSITIVE
