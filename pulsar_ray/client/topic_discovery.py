"""Keeps a consumer on all partitions that it is to have, while topics come, grow and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pulsar_ray.client.consumer_core import ConsumerCore
from pulsar_ray.errors import AlreadyClosed, PulsarException
from pulsar_ray.lane.io_thread import IoThread, TimerHandle
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)


class TopicDiscovery:
    """Looks every `period_s` seconds what there is, in a thread that lives for a look.

    `find` gives the partitions there are, `attach` opens one that is new and adds it to the core. What fails
    is tried again at the next look. A topic whose subscription was deleted is left alone until the topic
    itself has been away, or a consumer would bring back what an administrator has deleted.
    """

    def __init__(
        self,
        core: ConsumerCore,
        find: Callable[[], list[PartitionRoute]],
        attach: Callable[[PartitionRoute], None],
        period_s: float,
    ) -> None:
        self._core = core
        self._find = find
        self._attach = attach
        self._period_s = period_s
        self._timer: TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Look for the first time after one period."""
        self._arm()

    def stop(self) -> None:
        """Look no more; a look under way attaches nothing more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if not self._is_stopped:
            self._timer = IoThread.get().call_later(self._period_s, self._begin)

    def _begin(self) -> None:
        threading.Thread(target=self._run, name="pulsar-ray-topics", daemon=True).start()

    def _run(self) -> None:
        try:
            self._look()
        except AlreadyClosed:
            self.stop()
        except PulsarException as error:
            logger.warning("looking for topics of %s failed: %s", self._core.subscription, error)
        finally:
            self._arm()

    def _look(self) -> None:
        routes = {route.topic: route for route in self._find()}
        core = self._core
        core.withheld.intersection_update(routes)
        for partition in core.partitions:
            if core.is_multi_topic and partition.route.topic not in routes:
                core.remove(partition)
        for topic, route in routes.items():
            if self._is_stopped or core.has_failed:
                return
            if topic not in core.by_topic and topic not in core.withheld:
                self._try_attach(route)

    def _try_attach(self, route: PartitionRoute) -> None:
        try:
            self._attach(route)
        except AlreadyClosed:
            self.stop()
        except PulsarException as error:
            logger.warning("subscribing to %s, which is new, failed: %s", route.topic, error)
