"""How long a killed partition is away, against a bare actor that Ray restarts."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import ray

from benchmarks.measuring.environment import Environment
from benchmarks.measuring.floors import restarting_actor
from benchmarks.measuring.measure import p50
from benchmarks.measuring.results import Row
from benchmarks.sending.arrow import BATCH_BYTES, Publisher, batch_of_rows

LEDGER_BYTES = 10**9
ROUNDS = 3
DEADLINE_S = 60.0


def run(env: Environment) -> list[Row]:
    """Before each kill the open ledger gets a gigabyte; kills of ours and of the bare actor take turns."""
    ours: list[float] = []
    floor: list[float] = []
    with env.broker() as broker:
        topic = broker.topic()
        publisher = Publisher(broker, topic, batch_of_rows())
        producer = broker.client.create_producer(topic, send_timeout_millis=int(DEADLINE_S * 1000))
        actor = restarting_actor()
        batches = int(LEDGER_BYTES * min(1.0, env.scale)) // BATCH_BYTES
        for _ in range(ROUNDS):
            publisher.slice(batches)
            producer.send(b"before")
            pid = broker.pid(broker.partition(topic))
            ours.append(_until_served(pid, lambda: producer.send(b"after")))
            floor.append(_until_served(ray.get(actor.pid.remote()), lambda: _call(actor)))
        producer.close()
        publisher.close()
        ray.kill(actor)
    return [
        Row(
            f"partition killed with {batches * BATCH_BYTES / 1e9:.1f} GB in its ledger: next send confirmed",
            f"{p50(ours):.2f} s",
            f"bare actor serves again {p50(floor):.2f} s",
            p50(ours) / p50(floor),
            1.5,
            at_most=True,
        )
    ]


def _until_served(pid: int, work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    work()
    return time.perf_counter() - began


def _call(actor: Any) -> None:
    """Call until it answers, as one has to with an actor that was killed."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            ray.get(actor.nothing.remote(), timeout=DEADLINE_S)
        except ray.exceptions.RayActorError:
            if time.monotonic() > deadline:
                raise
        else:
            return
