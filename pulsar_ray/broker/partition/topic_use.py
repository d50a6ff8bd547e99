"""Tells whether somebody uses a partition's topic."""

from __future__ import annotations

from collections.abc import Hashable, Set

from pulsar_ray.broker.partition.followers import Followers
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_opening import ProducerOpening
from pulsar_ray.broker.partition.publishing.publish_intake import PublishIntake


class TopicUse:
    """Knows a partition's dispatchers and producers, and counts uses.

    Belongs to the owner loop.
    """

    def __init__(
        self,
        followers: Followers,
        producers: ConnectedProducers,
        opening: ProducerOpening,
        intake: PublishIntake,
    ) -> None:
        self._followers = followers
        self._producers = producers
        self._opening = opening
        self._intake = intake
        self._requests = 0

    def count_request(self) -> None:
        """Note that a client asked for something."""
        self._requests += 1

    def followed(self) -> Set[int]:
        """The numbers of the subscriptions whose dispatchers run."""
        return self._followers.numbers

    def has_producers(self) -> bool:
        """Whether one is connected, or waits to be."""
        return bool(self._producers.by_name or self._opening.waiting)

    def counts(self) -> Hashable:
        """Return something that changes with each use."""
        return self._requests, self._producers.admitted, self._intake.commits
