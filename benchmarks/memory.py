"""Private memory of the broker's processes while a backlog grows that nobody consumes."""

from __future__ import annotations

import psutil

from benchmarks.arrow import BATCH_BYTES, Publisher, batch_of_rows
from benchmarks.measuring.environment import Environment
from benchmarks.measuring.results import Row

BACKLOG_BYTES = 5 * 10**9
STEPS = 5
FLAT = 1.1


def run(env: Environment) -> list[Row]:
    """The consumer has a full queue from the start; memory is compared from there to the end."""
    with env.broker() as broker:
        topic = broker.topic()
        publisher = Publisher(broker, topic, batch_of_rows())
        consumer = broker.client.subscribe(topic, "bench")
        publisher.slice(128)
        pids = {
            "partition": broker.pid(broker.partition(topic)),
            "dispatcher": broker.pid(broker.dispatcher(topic, "bench")),
        }
        sizes = {name: [_private_bytes(pid)] for name, pid in pids.items()}
        total = int(BACKLOG_BYTES * min(1.0, env.scale))
        for _ in range(STEPS):
            publisher.slice(total // STEPS // BATCH_BYTES)
            for name, pid in pids.items():
                sizes[name].append(_private_bytes(pid))
        publisher.close()
        consumer.close()
    return [
        Row(
            f"private memory (USS) of the {name}, backlog 0 to {total / 1e9:.1f} GB",
            f"{seen[-1] / 2**20:.0f} MiB",
            f"at 128 MiB of backlog {seen[0] / 2**20:.0f} MiB",
            seen[-1] / seen[0],
            FLAT,
            at_most=True,
            note="MiB on the way: " + " ".join(f"{one / 2**20:.0f}" for one in seen),
        )
        for name, seen in sizes.items()
    ]


def _private_bytes(pid: int) -> int:
    return int(psutil.Process(pid).memory_full_info().uss)
