"""Asking the partition whether its topic has room for one more consumer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import PulsarException
from pulsar_ray.lane.waiting import within
from pulsar_ray.session.requests import OpenConsumer
from pulsar_ray.transport.cluster import SubscriptionRequest

REPORT_DEADLINE_S = 2.0


class TopicAdmission:
    """Counts the consumers of one dispatcher at its partition, which adds up those of all.

    It asks and reports nothing while the topic has no such limit. Consumers that were there before come back
    unasked.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        partition: PartitionLink,
        served: Mapping[str, OpenSubscription],
        request: SubscriptionRequest,
    ) -> None:
        self._settings = settings
        self._partition = partition
        self._served = served
        self._is_durable = request.durable
        self._name = request.subscription if request.durable else ""
        self._opening: dict[int, str] = {}
        self._reported: tuple[int, int] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether the topic limits consumers or subscriptions."""
        settings = self._settings
        return bool(settings.max_consumers_per_topic or settings.max_subscriptions_per_topic)

    def _counts(self) -> tuple[int, int]:
        """Count consumers and readers' subscriptions, those that are opening included."""
        consumers = set(self._opening).union(*(served.consumers for served in self._served.values()))
        readers = 0 if self._is_durable else len({*self._served, *self._opening.values()})
        return len(consumers), readers

    @contextlib.asynccontextmanager
    async def admitted(self, request: OpenConsumer) -> AsyncIterator[None]:
        """Let a consumer open within. Raises ConsumerBusy or NotAllowedError if the topic is full."""
        if request.joined or not self.is_limited:
            yield
            return
        is_new_reader = not self._is_durable and request.subscription not in self._served
        self._opening[request.incarnation] = request.subscription
        try:
            consumers, readers = self._counts()
            await self._partition.call(
                "admit_consumer",
                dispatcher=self._name,
                consumers=consumers,
                readers=readers,
                is_new_reader=is_new_reader,
            )
            self._reported = consumers, readers
            yield
        finally:
            self._opening.pop(request.incarnation, None)
            await self.report()

    async def report(self) -> None:
        """Report how many there are, if that is not what was reported last.

        A report that is lost is made again by `tick`.
        """
        counts = self._counts()
        if self.is_limited and counts != self._reported:
            with contextlib.suppress(PulsarException, asyncio.TimeoutError):
                consumers, readers = self._reported = counts
                report = {"dispatcher": self._name, "consumers": consumers, "readers": readers}
                await within(self._partition.call_once("report_consumers", report), REPORT_DEADLINE_S)

    def tick(self) -> None:
        """Let the next report be made whatever the partition was sent before; once a second."""
        self._reported = None
