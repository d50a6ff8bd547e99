"""The periodic look that keeps a consumer on all its partitions while topics change."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.endpoint.periodic_check import PeriodicCheck
from pulsar_ray.errors import AlreadyClosed, PulsarException, WrongNode
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)

ABSENT_LOOK_S = 3.0


class TopicDiscovery(PeriodicCheck):
    """Compares existing partitions with the consumer's every `period_s` seconds.

    `find` returns the existing partitions, `attach` opens a new one and adds it to the core. A failed attempt
    is repeated at the next look; while partitions are away looks follow each other sooner. A topic whose
    subscription was deleted is left alone until the topic itself has been deleted, or a consumer would bring
    back what an administrator has deleted.
    """

    def __init__(
        self,
        core: ConsumerCore,
        find: Callable[[], list[PartitionRoute]],
        attach: Callable[[PartitionRoute], None],
        period_s: float,
    ) -> None:
        super().__init__(f"topics of {core.subscription}", period_s)
        self._core = core
        self._find = find
        self._attach = attach
        self._refusals: dict[str, str] = {}
        """Holds the refusals of the last look, each of which is logged once."""

    @property
    def pause_s(self) -> float:
        """Seconds to the next look: fewer while partitions are away, which may be back soon."""
        return min(self._period_s, ABSENT_LOOK_S) if self._core.partitions.absent else self._period_s

    def _look(self) -> None:
        routes = {route.topic: route for route in self._find()}
        core = self._core
        for topic in [topic for topic in core.partitions.absent if topic not in routes]:
            core.partitions.absent.pop(topic, None)
        core.partitions.withheld.intersection_update(routes)
        self._refusals = {topic: text for topic, text in self._refusals.items() if topic in routes}
        for partition in core.partitions.all:
            if core.is_multi_topic and partition.route.topic not in routes:
                core.partitions.remove(partition)
        for topic, route in routes.items():
            if self.is_stopped or core.has_failed:
                return
            if topic in core.partitions.by_topic or topic in core.partitions.withheld:
                continue
            if route.away:
                core.partitions.miss(route, WrongNode(route.away))
            else:
                self._try_attach(route)

    def _try_attach(self, route: PartitionRoute) -> None:
        try:
            self._attach(route)
            self._refusals.pop(route.topic, None)
        except AlreadyClosed:
            self.stop()
        except WrongNode as error:
            self._core.partitions.miss(route, error)
        except PulsarException as error:
            if self._refusals.get(route.topic) != str(error):
                logger.warning("subscribing to %s, which is new, failed: %s", route.topic, error)
            self._refusals[route.topic] = str(error)
