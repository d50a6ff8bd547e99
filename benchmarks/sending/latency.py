"""How long one message takes: sync send, and publish to receive, less the disk's own time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from benchmarks.measuring.environment import Broker, Environment, run_inside
from benchmarks.measuring.floors import DurableFile, DurableRelay, empty_actor
from benchmarks.measuring.inside import Busy, start_computing, stop_computing
from benchmarks.measuring.measure import CpuMeter, alternate, p50, percentile, us
from benchmarks.measuring.results import Row

MESSAGE = b"x" * 1024
SUBSCRIPTION = "bench"
IN_A_ROW = 25
"""So many of ours, then so many of the floor: what a program sees that does one after the other."""


def run(env: Environment) -> list[Row]:
    """All rows; ours, an empty Ray call and an append + fdatasync take turns."""
    rows: list[Row] = []
    with env.broker() as broker:
        setup = _Setup(broker)
        rounds = env.count(1500, 100)
        setup.warm_up(env.count(1200, 50))
        rows += _send_row(setup, rounds, "sync send p50", 0.25)
        rows += _receive_row(setup, rounds, "publish to receive p50", 0.3)
        rows += _relay_rows(setup, rounds)
        few = env.count(300, 50)
        rows += _send_row(setup, few, "sync send p50, taking turns with a Ray call each time", None, 1)
        rows += _receive_row(
            setup, few, "publish to receive p50, taking turns with a Ray call each time", None, 1
        )
        for where, computing in (
            ("at the client", _client_computes),
            ("in the partition", setup.partition_computes),
            ("in the dispatcher", setup.dispatcher_computes),
        ):
            with computing():
                rows += _send_row(setup, few, f"sync send p50, a thread computing {where}", None)
                rows += _receive_row(setup, few, f"publish to receive p50, a thread computing {where}", None)
        setup.close()
    return rows


class _Setup:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.topic = broker.topic()
        self.producer = broker.client.create_producer(self.topic)
        self.sender_only = broker.topic()
        self.sender = broker.client.create_producer(self.sender_only)
        self.consumer = broker.client.subscribe(self.topic, SUBSCRIPTION)
        self.actor = empty_actor()
        self.file = DurableFile(broker.directory / "floor")
        self.relay = DurableRelay(broker.directory / "relay")
        self.long_relay = DurableRelay(broker.directory / "long-relay", is_passed_on=True)
        self._block = b"f" * 4096

    def send(self) -> None:
        self.sender.send(MESSAGE)

    def publish_and_receive(self) -> None:
        self.producer.send_async(MESSAGE, None)
        self.consumer.acknowledge(self.consumer.receive())

    def warm_up(self, rounds: int) -> None:
        """As long as it takes until a partition trusts a quick disk."""
        for _ in range(rounds):
            self.send()
            self.publish_and_receive()

    def call(self) -> None:
        ray.get(self.actor.nothing.remote())

    def append(self) -> None:
        self.file.append(self._block)

    @contextmanager
    def partition_computes(self) -> Iterator[None]:
        with (
            _computing_inside(self.broker.partition(self.topic)),
            _computing_inside(self.broker.partition(self.sender_only)),
        ):
            yield

    @contextmanager
    def dispatcher_computes(self) -> Iterator[None]:
        with _computing_inside(self.broker.dispatcher(self.topic, SUBSCRIPTION)):
            yield

    def close(self) -> None:
        self.producer.close()
        self.sender.close()
        self.consumer.close()
        self.file.close()
        self.relay.close()
        self.long_relay.close()


def _relay_rows(setup: _Setup, rounds: int) -> list[Row]:
    """Ours against the same bytes on the same way through processes that do not look at them."""
    gc.collect()
    works = {
        "send": setup.send,
        "relay": lambda: setup.relay.send(MESSAGE),
        "receive": setup.publish_and_receive,
        "long relay": lambda: setup.long_relay.send(MESSAGE),
    }
    times = {name: p50(took) for name, took in alternate(works, rounds, IN_A_ROW, IN_A_ROW).items()}
    return [
        Row(
            f"{what}, with the disk's time",
            us(times[ours]),
            f"{floor} {us(times[relay])}",
            times[ours] / times[relay],
        )
        for what, ours, floor, relay in (
            ("sync send p50", "send", "a bare process that syncs and answers", "relay"),
            ("publish to receive p50", "receive", "one that syncs, one behind that answers", "long relay"),
        )
    ]


@contextmanager
def _computing_inside(actor: Any) -> Iterator[None]:
    run_inside(actor, start_computing)
    try:
        yield
    finally:
        run_inside(actor, stop_computing)


@contextmanager
def _client_computes() -> Iterator[None]:
    busy = Busy()
    try:
        yield
    finally:
        busy.stop()


def _send_row(
    setup: _Setup, rounds: int, what: str, limit: float | None, in_a_row: int = IN_A_ROW
) -> list[Row]:
    meter = setup.broker.meter(setup.sender_only)
    return _row(setup, setup.send, meter, rounds, what, limit, in_a_row)


def _receive_row(
    setup: _Setup, rounds: int, what: str, limit: float | None, in_a_row: int = IN_A_ROW
) -> list[Row]:
    meter = setup.broker.meter(setup.topic, SUBSCRIPTION)
    return _row(setup, setup.publish_and_receive, meter, rounds, what, limit, in_a_row)


def _row(
    setup: _Setup,
    ours: Callable[[], None],
    meter: CpuMeter,
    rounds: int,
    what: str,
    limit: float | None,
    in_a_row: int,
) -> list[Row]:
    gc.collect()
    works = {"ours": ours, "call": setup.call, "append": setup.append}
    times = alternate(works, rounds, IN_A_ROW, in_a_row)
    mine, call, append = p50(times["ours"]), p50(times["call"]), p50(times["append"])
    with meter.running():
        for _ in range(rounds):
            ours()
    return [
        Row(
            what,
            f"{us(mine)} - {us(append)}",
            f"empty Ray call {us(call)}",
            (mine - append) / call,
            limit,
            at_most=True,
            cpu_us={} if limit is None else meter.per_message(rounds),
            note=f"p99 {us(percentile(times['ours'], 99))}, floor {us(percentile(times['append'], 99))}",
        )
    ]
