"""Tasks of a Ray Serve deployment: our queue, and Ray's Celery adapter on a Redis that syncs every write."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from ray import serve
from ray.serve.schema import CeleryAdapterConfig, TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

from benchmarks.measuring.environment import Environment, Skipped
from benchmarks.measuring.measure import rate, timed
from benchmarks.measuring.results import Row
from pulsar_ray.serve import TaskQueueConfig

TASKS = 1000
ROUNDS = 3
LOOK_S = 0.02
DEADLINE_S = 300.0


def run(env: Environment) -> list[Row]:
    """Enqueue tasks one at a time, each confirmed, then start a replica that runs them."""
    for needed in ("celery", "redis"):
        if importlib.util.find_spec(needed) is None:
            raise Skipped(f"the Python package {needed} is not installed")
    if shutil.which("redis-server") is None:
        raise Skipped("no redis-server on PATH")
    count = env.count(TASKS, 20)
    times: dict[str, dict[str, list[float]]] = {name: {"in": [], "out": []} for name in ("ours", "celery")}
    with env.broker() as broker, _redis(broker.directory) as url:
        # Nobody asks over HTTP.
        serve.start(proxy_location="Disabled")
        for turn in range(ROUNDS):
            for name, config in (
                ("ours", _ours(f"bench-{turn}")),
                ("celery", _celery(f"bench-{turn}", url)),
            ):
                enqueued, ran = _measure(config, count)
                times[name]["in"].append(enqueued)
                times[name]["out"].append(ran)
        serve.shutdown()  # type: ignore[no-untyped-call]
    rows = []
    for what, key in (("enqueue, one at a time", "in"), ("run by one replica", "out")):
        ours, celery = (median(times[name][key]) for name in ("ours", "celery"))
        rows.append(Row(what, rate(count, ours), f"Celery on Redis {rate(count, celery)}", celery / ours))
    return rows


def _ours(name: str) -> TaskProcessorConfig:
    return TaskProcessorConfig(
        queue_name=name, adapter="pulsar_ray.serve.TaskQueue", adapter_config=TaskQueueConfig()
    )


def _celery(name: str, url: str) -> TaskProcessorConfig:
    return TaskProcessorConfig(
        queue_name=name, adapter_config=CeleryAdapterConfig(broker_url=url, backend_url=url)
    )


def _measure(config: TaskProcessorConfig, count: int) -> tuple[float, float]:
    """Seconds in which the tasks are enqueued, and in which they are run, from the first one's end on."""
    adapter: Any = instantiate_adapter_from_config(config)
    enqueued = timed(lambda: _enqueue(adapter, count))

    @serve.deployment(ray_actor_options={"num_cpus": 0})
    @task_consumer(task_processor_config=config)
    class Tasks:
        def __init__(self) -> None:
            self.ended: list[float] = []

        @task_handler(name="task")
        def task(self, number: int) -> int:
            self.ended.append(time.monotonic())
            return number

        def __call__(self) -> list[float]:
            return [len(self.ended), *self.ended[:1], *self.ended[-1:]]

    handle = serve.run(Tasks.bind(), name=config.queue_name, route_prefix=None)  # type: ignore[attr-defined]
    deadline = time.monotonic() + DEADLINE_S
    while True:
        done, *ends = handle.remote().result()
        if done >= count:
            break
        if time.monotonic() > deadline:
            raise TimeoutError(f"{done} of {count} tasks ran in {DEADLINE_S:.0f} s")
        time.sleep(LOOK_S)
    serve.delete(config.queue_name)
    return enqueued, ends[1] - ends[0]


def _enqueue(adapter: Any, count: int) -> None:
    for number in range(count):
        adapter.enqueue_task_sync("task", [number])


@contextlib.contextmanager
def _redis(directory: Path) -> Iterator[str]:
    """A redis-server that loses nothing that it has confirmed, as ours; its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory),
               "--appendonly", "yes", "--appendfsync", "always", "--save", ""]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()
