"""What the suite runs against: a stub broker reached over one kind of carrier, and a look into its files."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pulsar_ray import asyncio
from pulsar_ray.admin.admin import Admin
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.received.message import Message
from pulsar_ray.config import Settings
from pulsar_ray.errors import Moved
from pulsar_ray.format.payload import DecodedBlock, Decrypt, decode_block, without_key
from pulsar_ray.ledger.reader import SegmentGone, SegmentReader
from pulsar_ray.model.enums import InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.testing.lossy_tunnel import LOSSY, PERFECT
from pulsar_ray.testing.stub_cluster import StubCluster
from pulsar_ray.testing.waiting import wait_until

TRANSPORTS = ("socket", "tcp", "ray", "lossy")
"""socket: a client on the node that reads grants from files; tcp: one of another node that is sent bytes;
ray: the tunnel; lossy: the tunnel where calls and replies get lost, repeated, delayed and reordered."""
CARRIERS = {"lossy": "ray", "sleepy": "socket"}
"""What clients are told to use."""
EARLIEST = InitialPosition.Earliest
WAIT_MS = 20_000
"""For what must come."""
QUIET_MS = 150
"""For what must not come."""
_TOPICS = itertools.count()


class Broker:
    """A broker on `directory` and its clients."""

    def __init__(self, directory: Path, transport: str, seed: int, **settings: Any) -> None:
        self.transport = transport
        self._directory = directory
        self._seed = seed
        if transport == "sleepy":
            # Going to sleep an actor would delete what all have consumed.
            settings = {
                "default_retention_time_in_minutes": -1,
                "default_retention_size_in_mb": -1,
                **settings,
            }
        self._settings = Settings(
            **{
                # A carrier that loses calls is given up now and then, and the next one may come late.
                "reattach_grace_seconds": 5.0 if transport == "lossy" else 1.0,
                "new_topic_retention_seconds": 0,
                **settings,
                "data_dir": str(directory),
            }
        )
        self.clients: list[Client] = []
        """Those that are shut down at the end."""
        self._asyncio_clients: list[asyncio.Client] = []
        self._kept: list[object] = []
        self.cluster = self._new_cluster()

    def _new_cluster(self) -> StubCluster:
        cluster = StubCluster(
            self._directory,
            self._settings,
            reads_files=self.transport in ("socket", "sleepy", "ray"),
            lanes=self.transport in ("socket", "sleepy", "tcp"),
            faults=LOSSY if self.transport == "lossy" else PERFECT,
            seed=self._seed,
        )
        if self.transport == "sleepy":
            cluster.keep_putting_to_sleep()
        return cluster

    def client(self, *, forgets: bool = False, **arguments: Any) -> Client:
        """A client with a session of its own, as another process would have.

        What it opens stays open though a test has no name for it, unless it `forgets`.
        """
        kind = CARRIERS.get(self.transport, self.transport)
        client = Client._on(self.cluster, transport=kind, **arguments)
        self.clients.append(client)
        if not forgets:
            self._keep_handles_of(client)
        return client

    def _keep_handles_of(self, client: Client) -> None:
        add = client._handles.add

        def kept(handle: Any, name: str = "", *, stays: bool = False) -> None:
            self._kept.append(handle)
            add(handle, name, stays=stays)

        vars(client._handles)["add"] = kept

    def admin(self, **arguments: Any) -> Admin:
        """An administrator of this broker."""
        return Admin._on(self.cluster, **arguments)

    def asyncio_client(self, *, forgets: bool = False, **arguments: Any) -> asyncio.Client:
        """As `client`; it lives on the loop it is first used on."""
        kind = CARRIERS.get(self.transport, self.transport)
        client = asyncio.Client._on(self.cluster, transport=kind, **arguments)
        self._asyncio_clients.append(client)
        if not forgets:
            self._keep_handles_of(client._inner)
        return client

    def topic(self, partitions: int = 0) -> str:
        """The full name of a new topic."""
        name = f"persistent://public/default/t{next(_TOPICS)}"
        self.cluster.create_topic(name, partitions)
        return name

    def restart(self, *, kill: bool) -> None:
        """End the whole broker and start it again on its directory; its clients are shut down."""
        self._shut_down_clients()
        self.cluster.close(kill=kill)
        self.cluster = self._new_cluster()

    def close(self) -> None:
        """End everything. Fails if an actor ended itself."""
        self._shut_down_clients()
        self._kept.clear()
        self.cluster.close()
        fatal = self.cluster.fatal_errors
        assert not fatal, "".join("".join(traceback.format_exception(error)) for error in fatal)

    def _shut_down_clients(self) -> None:
        for client in self.clients:
            if client.is_usable:
                client.shutdown()
        for asyncio_client in self._asyncio_clients:
            asyncio_client.shutdown()

    def unacked(self, topic: str, subscription: str) -> list[int]:
        """How many messages each consumer was given and has not acknowledged, in the order they came.

        Nobody, if the dispatcher sleeps: then no consumer has any.
        """
        try:
            core = self.served(topic, subscription).core
        except Moved:
            return []
        return [consumer.unacked for consumer in core.consumers.values()]

    def wait_for_room(self, topic: str, subscription: str, consumers: int) -> None:
        """Wait until the credit of so many consumers has arrived: it follows `subscribe`."""

        def with_room() -> int:
            known = self.served(topic, subscription).core.consumers.values()
            return sum(consumer.permits > 0 for consumer in known)

        wait_until(lambda: with_room() == consumers, what="consumers have room")

    def expire_sessions(self, topic: str, subscription: str) -> None:
        """End the sessions at a dispatcher, as of clients that were silent for longer than their leases.

        The clients are attached again when this returns.
        """
        actor = self.cluster.dispatcher_of(topic, subscription)
        clients = actor.host.clients

        async def expire() -> None:
            sessions = actor.host.sessions
            sessions.tick(actor.clock.monotonic_ms())  # what was heard until now is heard in time
            sessions.tick(1 << 62)

        actor.result(actor.submit(expire), WAIT_MS / 1000)
        wait_until(lambda: actor.host.clients == clients, what="the clients are back")

    def served(self, topic: str, subscription: str) -> ServedSubscription:
        """The subscription of a stored topic in its dispatcher."""
        server = self.cluster.dispatcher_of(topic, subscription).server
        assert server is not None
        served = server.subscriptions.served[subscription]
        assert isinstance(served, ServedSubscription)
        return served

    def stored_blocks(
        self, topic: str, decrypt: Decrypt = without_key
    ) -> list[tuple[int, int, DecodedBlock]]:
        """(ledger id, first entry id, block) of all that is stored in a partition, read from its files."""
        server = self.cluster.partition(topic).server
        assert server is not None
        blocks = []
        log = server.calls.describe_log()
        for ledger_id, _, path, _, end, _ in log["segments"]:
            if ledger_id < log["first"][0]:  # it is being deleted just now
                continue
            try:
                opened = SegmentReader(Path(path))
            except SegmentGone:
                # Deleted since the log was described: the first ledger is another by now.
                if ledger_id >= self.first_stored(topic)[0]:
                    raise
                continue
            with opened as reader:
                for offset, frame in reader.read_frames(4096, end, 1 << 30):
                    at, entry = offset + frame.header_length, frame.first_entry_id
                    for length, entries, _ in frame.blocks:
                        read = reader.read_block(at, length)
                        blocks.append((ledger_id, entry, decode_block(read, 0, path, decrypt)))
                        at, entry = at + length, entry + entries
        return blocks

    def first_stored(self, topic: str) -> tuple[int, int]:
        """(ledger id, entry id) of the first entry that a partition has left."""
        server = self.cluster.partition(topic).server
        assert server is not None
        ledger_id, entry_id = server.calls.describe_log()["first"]
        return ledger_id, entry_id

    def stored(self, topic: str) -> list[bytes | None]:
        """The values stored in a partition, in order."""
        return [value for _, _, block in self.stored_blocks(topic) for value in block.values()]


def send_batch(client: Client, topic: str, sent: list[bytes]) -> list[MessageId]:
    """One batch of these values, and the ids of its messages."""
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    ids: list[MessageId] = []
    for value in sent:
        producer.send_async(value, lambda _result, message_id: ids.append(message_id))
    producer.close()
    return ids


def receive(consumer: Consumer, count: int) -> list[Message]:
    """The next messages; fails if they do not come."""
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def values(consumer: Consumer, count: int, *, acknowledge: bool = False) -> list[bytes]:
    """The values of the next messages, acknowledged if wanted."""
    found = []
    for message in receive(consumer, count):
        if acknowledge:
            consumer.acknowledge(message)
        found.append(message.data())
    return found


def keyed_numbers(consumers: Sequence[Consumer], count: int) -> list[tuple[int, str, int]]:
    """(consumer's index, key, value as a number) of the next messages, wherever they come; acknowledged."""
    got: list[tuple[int, str, int]] = []

    def all_arrived() -> bool:
        for index, consumer in enumerate(consumers):
            while consumer._core.has_received():
                message = consumer.receive(WAIT_MS)
                got.append((index, message.partition_key(), int(message.data())))
                consumer.acknowledge(message)
        return len(got) == count

    wait_until(all_arrived, what=f"all of {count} at {len(consumers)} consumers")
    return got


def numbers(first: int, end: int) -> list[bytes]:
    """Distinct values in order."""
    return [b"%06d" % number for number in range(first, end)]
