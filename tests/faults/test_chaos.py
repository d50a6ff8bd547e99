"""A time under load in which every kind of process is killed and frozen, and carriers break in the middle.

The clients take turns on Unix sockets, Ray calls and TCP; the seed says in which order.
FAULTS_SEED repeats a run as far as the seed decides it; FAULTS_SECONDS makes it shorter or longer.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray import ConsumerType
from pulsar_ray.admin import Admin
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER, dispatcher_name, partition_name
from tests.faults.chaos import KINDS, Chaos
from tests.faults.client_process import ClientSpec
from tests.faults.journal import id_of
from tests.faults.processes import ClientProcess
from tests.faults.reading import read_all
from tests.faults.verdict import Arrivals, Deliveries, Log, check_log, confirmed, head_of, keep, log_of
from tests.running_broker import Broker

PARTITIONS = 2
RECEIPTS, ORDERED = "receipts", "ordered"
CATCH_UP_S = 180.0
SENTINEL_MS = 60_000
CARRIERS = ("auto", "ray", "tcp")


@pytest.fixture
def seed() -> int:
    """Printed, so that a failed run can be repeated."""
    seed = int(os.environ.get("FAULTS_SEED") or secrets.randbelow(10**6))
    print(f"FAULTS_SEED={seed}")
    return seed


class Run:
    """A topic with its producers and consumers in processes of their own."""

    def __init__(
        self,
        broker: Broker,
        directory: Path,
        seed: int,
        *,
        mean_cut_pause_s: float,
        nacks: bool,
    ) -> None:
        self.broker = broker
        self.client = broker.client()
        self.topic = f"chaos-{secrets.token_hex(3)}"
        self.full = TopicName.parse(self.topic).full
        self._directory = directory
        self._carriers = itertools.cycle(CARRIERS if seed % 2 else reversed(CARRIERS))
        self._seed = seed
        self._mean_cut_pause_s = mean_cut_pause_s
        with Admin(broker.address) as admin:
            admin.topics.create_partitioned_topic(self.topic, PARTITIONS)
        for subscription, kind in ((RECEIPTS, ConsumerType.Shared), (ORDERED, ConsumerType.Exclusive)):
            self.client.subscribe(self.topic, subscription, consumer_type=kind).close()
        self.producers = [self._process(role) for role in ("sync", "async", "many")]
        self.consumers = {
            RECEIPTS: [
                self._process("receipts", RECEIPTS, nacks=nacks),
                self._process("receipts", RECEIPTS, reads_files=False),
                self._process("grouped", RECEIPTS),
            ],
            ORDERED: [self._process("cumulative", ORDERED)],
        }
        for process in self.processes:
            process.wait_started()

    def _process(
        self, role: str, subscription: str = "", *, nacks: bool = False, reads_files: bool = True
    ) -> ClientProcess:
        self._seed += 1000
        spec = ClientSpec(
            self.broker.address,
            role,
            self.topic,
            f"{role}-{self._seed}",
            "",
            next(self._carriers),
            self._seed,
            subscription=subscription,
            mean_cut_pause_s=self._mean_cut_pause_s,
            nacks=nacks,
            reads_files=reads_files,
        )
        return ClientProcess(spec, self._directory)

    @property
    def processes(self) -> list[ClientProcess]:
        return [*self.producers, *(c for consumers in self.consumers.values() for c in consumers)]

    def partitions(self) -> list[str]:
        return [f"{self.full}-partition-{index}" for index in range(PARTITIONS)]

    def dispatchers(self) -> list[str]:
        return [dispatcher_name(p, s, durable=True) for p in self.partitions() for s in self.consumers]

    def actors(self) -> list[str]:
        return [*map(partition_name, self.partitions()), *self.dispatchers(), CONTROLLER, self.broker.store()]

    def end(self) -> Log:
        """Let producers finish, consumers catch up and all leave; the whole log."""
        for producer in self.producers:
            producer.tell_end()
        for producer in self.producers:
            producer.wait_end()
        heads = set(confirmed(self.producers))
        for subscription, consumers in self.consumers.items():
            self._catch_up(subscription, consumers, heads)
        for consumers in self.consumers.values():
            for consumer in consumers:
                consumer.tell_end()
        for consumers in self.consumers.values():
            for consumer in consumers:
                consumer.wait_end()
        return log_of(m for partition in self.partitions() for m in read_all(self.client, partition))

    def _catch_up(self, subscription: str, consumers: list[ClientProcess], heads: set[str]) -> None:
        """Wait until the subscription has given them all of these."""
        arrivals = Arrivals(consumers)

        def has_all() -> bool:
            for consumer in consumers:
                consumer.check()
            return heads <= arrivals.heads()

        try:
            wait_until(has_all, CATCH_UP_S, f"all confirmed messages at {subscription}")
        except AssertionError as error:
            missing = sorted(heads - arrivals.heads())
            raise AssertionError(f"{error}; {len(missing)} are missing: {missing[:10]}") from None

    def left_over(self, subscription: str) -> set[str]:
        """What the subscription still gives to a new consumer, up to what is published now."""
        kind = ConsumerType.Exclusive if subscription == ORDERED else ConsumerType.Shared
        consumer = self.client.subscribe(self.topic, subscription, consumer_type=kind)
        producer = self.client.create_producer(self.topic)
        last = {producer.send(b"last 0 ").partition() for _ in range(PARTITIONS)}
        assert len(last) == PARTITIONS
        found: set[str] = set()
        seen: set[int] = set()
        while len(seen) < PARTITIONS:
            message = consumer.receive(SENTINEL_MS)
            head = head_of(message.data())
            if head == "last 0":
                seen.add(id_of(message.message_id())[0])
            else:
                found.add(head)
            consumer.acknowledge(message)
        consumer.close()
        producer.close()
        return found

    def remove(self) -> None:
        """Whatever happened, nothing of it stays."""
        for process in self.processes:
            process.thaw()
            process.kill()
        self.broker.forget(self.topic)


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Its processes end with the test."""
    started: list[Run] = []
    yield started
    for run in started:
        run.remove()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_promises_are_kept(broker: Broker, tmp_path: Path, seed: int, runs: list[Run]) -> None:
    seconds = float(os.environ.get("FAULTS_SECONDS", "60"))
    run = Run(broker, tmp_path, seed, mean_cut_pause_s=3.0, nacks=True)
    runs.append(run)
    chaos = Chaos(broker, seed, run.actors(), run.processes)
    chaos.run(seconds)
    assert chaos.strikes.keys() == KINDS
    assert sum(chaos.strikes.values()) > seconds / 10
    log = run.end()
    promised = confirmed(run.producers)
    print(f"{len(promised)} confirmed, {len(log)} stored")
    check_log(log, promised)
    for subscription, consumers in run.consumers.items():
        deliveries = Deliveries(consumers)
        received, acknowledged = len(deliveries.received), len(deliveries.acknowledged)
        print(f"{subscription}: {received} received, {acknowledged} acknowledged")
        deliveries.check_contents(log)
        deliveries.check_acknowledged_stay_away()
        again = run.left_over(subscription)
        sure = {log[place] for place in deliveries.acknowledged}
        keep(not again & sure, f"acknowledged for sure, but given again: {sorted(again & sure)[:20]}")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_dispatchers_alone_die_unnoticed(broker: Broker, tmp_path: Path, seed: int, runs: list[Run]) -> None:
    seconds = float(os.environ.get("FAULTS_SECONDS", "30"))
    run = Run(broker, tmp_path, seed, mean_cut_pause_s=0.0, nacks=False)
    runs.append(run)
    Chaos(broker, seed, run.dispatchers(), []).run(seconds)
    log = run.end()
    check_log(log, confirmed(run.producers))
    for consumers in run.consumers.values():
        deliveries = Deliveries(consumers)
        deliveries.check_contents(log)
        deliveries.check_once()
