"""Publishing how busy the nodes are, while somebody reads that."""

from __future__ import annotations

import json
import logging
import zlib
from typing import Any

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.actors.broker_actors import BrokerActors
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.topic_name import RESOURCE_USAGE, RESOURCE_USAGE_PARTITIONS
from pulsar_ray.transport.actor_names import partition_name

logger = logging.getLogger(__name__)

CALL_DEADLINE_S = 3.0


class ResourceUsage:
    """Belongs to the controller, whose watch calls `publish`.

    A partition of the topic runs only while somebody uses it, and takes messages only while somebody follows.
    """

    def __init__(self, stores: Stores, actors: BrokerActors) -> None:
        self._stores = stores
        self._actors = actors

    async def publish(self) -> None:
        """Publish one message for each store to the partition that its id hashes to."""
        readers: dict[int, ActorHandle] = {}
        for index in range(RESOURCE_USAGE_PARTITIONS):
            handle = self._actors.handles.get(partition_name(RESOURCE_USAGE.partition(index).full))
            if handle is not None:
                readers[index] = handle
        if not readers:
            return
        for store_id, store in list(self._stores.known.items()):
            handle = readers.get(zlib.crc32(store_id.encode()) % RESOURCE_USAGE_PARTITIONS)
            if handle is not None:
                await self._publish(store_id, store, handle)

    async def _publish(self, store_id: str, store: dict[str, Any], partition: ActorHandle) -> None:
        try:
            usage = await store["handle"].call("usage", within_s=CALL_DEADLINE_S)
            report = {"storeId": store_id, "host": store["host"], **usage}
            message = {"key": store_id, "value": json.dumps(report)}
            await partition.call("call", "append_message", message, within_s=CALL_DEADLINE_S)
        except PulsarException as error:
            logger.warning("the usage of %s is not published: %s", store["host"], error)
