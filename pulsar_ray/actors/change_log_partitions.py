"""The partitions of change logs as the controller uses them: started, asked, started again."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.passivation import Passivation
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.actors.topic_actors import TopicActors
from pulsar_ray.errors import Moved, NotConnected, PulsarException, ServiceUnitNotReady, Timeout, WrongNode
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import TopicName, system_change_log

DEADLINE_S = 25.0
"""Less than an administrator waits for an answer."""
PAUSE_S = 0.05


class ChangeLogPartitions:
    """Implements `LogPartitions` by calls on actor handles. A repeated call does no harm."""

    def __init__(
        self, served: TopicActors, stores: Stores, actors: BrokerActors, passivation: Passivation
    ) -> None:
        self._served = served
        self._passivation = passivation
        self._stores = stores
        self._actors = actors

    async def prepare(self, log: TopicName, partitions: int) -> None:
        """Make a missing log, and let all stores record that there are logs.

        The catalog knows the log, and the cluster's own, before a store says that there are logs: one that
        the stores name and the catalog lacks counts as lost.
        """
        await self._stores.reserve_numbers(1 + max(partitions, 1))
        for each, count in ((system_change_log(), 0), (log, partitions)):
            self._served.topics.create_change_log(each, count, self._stores.for_new_partitions)
        await self._served.topics.catalog.settled()
        await self._stores.record_change_logs()

    async def expect(self, partitions: list[str]) -> None:
        """Start partitions without waiting for them."""
        for partition in partitions:
            with contextlib.suppress(PulsarException):
                await self._handle(partition)

    async def append(self, partition: str, key: str, value: str) -> Position:
        """Append one message. Raises WrongNode, or Timeout if the partition does not answer."""
        return Position(*await self.ask(partition, "append_message", {"key": key, "value": value}))

    async def read(self, partition: str, behind: Position) -> list[dict[str, Any]]:
        """Read the next messages behind a position. Raises as `append`."""
        page: list[dict[str, Any]] = await self.ask(partition, "read_messages", {"behind": list(behind)})
        return page

    async def ask(self, partition: str, method: str, arguments: dict[str, Any]) -> Any:
        """Make a control call of a partition, again while it starts. Raises as `append`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + DEADLINE_S
        while True:
            handle = await self._handle(partition)
            try:
                return await handle.call("call", method, arguments, within_s=deadline - loop.time())
            except Timeout:
                if loop.time() < deadline:
                    raise  # the partition's own
                raise Timeout(f"{partition} does not answer: look at its node") from None
            except (Moved, NotConnected, ServiceUnitNotReady) as error:
                if isinstance(error, WrongNode) or loop.time() + PAUSE_S >= deadline:
                    raise
                if isinstance(error, Moved):
                    # Dead for good: the next attempt creates it anew.
                    self._actors.forget_dead()
            await asyncio.sleep(PAUSE_S)

    async def _handle(self, partition: str) -> Any:
        row = self._served.topics.catalog.partition(TopicName.parse(partition).full)
        if row is None:
            raise WrongNode(
                f"{partition}, a log of policies, was not found when the catalog was made anew: start the "
                "node that has it, and run `pulsar-ray stop` and `pulsar-ray start --rebuild-catalog`; if it "
                "is lost for good, give the log up (`abandon_change_logs`)"
            )
        start = partial(self._served.started, [row])
        ((_, _, address, away, _),) = await self._passivation.start([row.name], start)
        if away:
            raise WrongNode(away)
        return self._actors.handles[address]
