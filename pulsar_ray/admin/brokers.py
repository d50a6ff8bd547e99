"""`Admin.brokers`: the nodes that store, and whether they really produce and consume."""

from __future__ import annotations

import builtins
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_ray.admin.moving import Moving, PartitionMove
from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.checks import check_number
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


@dataclass(frozen=True, slots=True)
class BrokerNode:
    """One node that has, had or could have a store of the broker."""

    host: str
    state: str
    """One of seven states.

    serving, draining (everything moves away), drained (nothing is left, and the node may go), silent (its
    store does not answer), away (its store is on
    no running node), lost (the node is there, and its store is not) or "without store".
    """
    store_id: str = ""
    node_id: str = ""
    """Ray's id of the node; "" while it is away."""
    path: str = ""
    """The data directory."""
    partitions: int = 0
    """How many lie in its store."""
    since_ms: int = 0
    """The time in ms from which on its store is on no node, or 0.

    Since 1970, as far as the broker saw the store go or missed it first.
    """
    free_bytes: int | None = None
    total_bytes: int | None = None
    """The size of the disk; None where the store does not answer."""
    reason: str = ""
    """Why it does not serve, where that is known."""
    remote_lag_seconds: float | None = None
    """The age of the oldest that is to be shipped; None without an object store."""
    remote_waiting_bytes: int | None = None
    """How much waits to be shipped."""


class Brokers:
    """The stores of the broker, one on each node that holds partitions."""

    def __init__(self, broker: Broker, new_client: Callable[[], Client]) -> None:
        self._broker = broker
        self._new_client = new_client
        self._moving = Moving(broker)

    def list(self) -> builtins.list[str]:
        """Return the hosts of the stores that are there, sorted."""
        return sorted({host for _, host, _ in self._broker.ask("heartbeats")})

    def nodes(self) -> builtins.list[BrokerNode]:
        """Return every node that has, had or could have a store, sorted by host.

        The stores that are there are asked for their disks, for two seconds at most.
        """
        return [
            BrokerNode(
                host=node["host"],
                state=node["state"],
                store_id=node["storeId"],
                node_id=node["nodeId"],
                path=node["path"],
                partitions=node["partitions"],
                since_ms=node["sinceMs"],
                free_bytes=node.get("freeBytes"),
                total_bytes=node.get("totalBytes"),
                reason=node["reason"],
                remote_lag_seconds=node.get("remoteLagSeconds"),
                remote_waiting_bytes=node.get("remoteWaitingBytes"),
            )
            for node in self._broker.ask("nodes")
        ]

    def moves(self) -> builtins.list[PartitionMove]:
        """Return the moves of partitions under way, and the last that are over."""
        return self._moving.moves()

    def drain(self, node: str, *, wait: bool = True, shown: Callable[[int], None] = lambda _: None) -> None:
        """Have everything move away from a node, which may go afterwards.

        Nothing new is placed there from now on. `node` is a host, or how the id of its store, or Ray's of
        the node, begins. Partitions move as by
        `topics.move`, each to the store that has the fewest. The broker carries on by itself, whatever
        becomes of this call, and tries again what failed: `nodes` says why. With `wait` this returns once
        nothing is left; `shown` is called now and then with the number of partitions that are. Raises
        NotAllowedError if no such store is there, ServiceUnitNotReady if it is the last one.
        """
        self._moving.drain(node, shown, waits=wait)

    def undrain(self, node: str) -> None:
        """Let a node that is drained take partitions again.

        Those that have moved stay where they are.
        """
        self._moving.undrain(node)

    def balance(
        self,
        *,
        wait: bool = True,
        shown: Callable[[builtins.list[PartitionMove]], None] = lambda _: None,
    ) -> builtins.list[PartitionMove]:
        """Have partitions move until all stores have about as many.

        Returns how the moves ended, or without `wait` those that begin; none if there was nothing to do.
        """
        return self._moving.balance(shown, waits=wait)

    def expect_stores(self, count: int) -> None:
        """Keep durably how many stores the cluster is to have.

        `health` misses those that never came. 0 takes the word back. Raises ValueError for a negative number.
        """
        check_number("count", count, 0)
        self._broker.ask("expect_stores", count)

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
