"""`Admin.brokers`: the nodes that store, and whether they really produce and consume."""

from __future__ import annotations

import builtins
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.client import Client
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.message_id import MessageId


@dataclass(frozen=True, slots=True)
class Health:
    """The outcome of one store's check; `problem` is empty if a message went through."""

    store_id: str
    host: str
    publish_ms: float = 0.0
    """From the call to the receipt of a message of a topic in use."""
    receive_ms: float = 0.0
    """From the call to the arrival at a reader."""
    problem: str = ""


class Brokers:
    """The stores of the broker, one on each node that holds partitions."""

    def __init__(self, broker: Broker, new_client: Callable[[], Client]) -> None:
        self._broker = broker
        self._new_client = new_client

    def list(self) -> builtins.list[str]:
        """Return the hosts of the stores that are there, sorted."""
        return sorted({host for _, host, _ in self._broker.ask("heartbeats")})

    def healthcheck(self) -> builtins.list[Health]:
        """Publish a message to each store's heartbeat topic and read it back, durably and really.

        A store that fails, or does not answer within the operation timeout, has a `problem`; this raises
        only if the controller does not answer.
        """
        stores = self._broker.ask("heartbeats")
        with self._new_client() as client:
            return [self._check(client, *store) for store in stores]

    def _check(self, client: Client, store_id: str, host: str, topic: str) -> Health:
        try:
            with client.create_reader(topic, MessageId.latest) as reader, client.create_producer(topic) as p:
                # The first one opens files and connections.
                p.send(b"first")
                wanted = secrets.token_bytes(16)
                start = time.perf_counter()
                p.send(wanted)
                published = time.perf_counter()
                while reader.read_next(int(self._broker.operation_timeout_s * 1000)).data() != wanted:
                    pass
                received = time.perf_counter()
        except PulsarException as error:
            return Health(store_id, host, problem=str(error))
        return Health(store_id, host, 1000 * (published - start), 1000 * (received - start))
