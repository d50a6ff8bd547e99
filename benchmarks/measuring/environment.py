"""A Ray of our own for the run, and a broker on it for each directory that is measured."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

import pulsar_ray
from benchmarks.measuring.measure import CpuMeter
from pulsar_ray.launch.start import stop_broker
from pulsar_ray.transport.actor_names import NAMESPACE, dispatcher_name, partition_name

_NUMBERS = itertools.count(1)
TMPFS = Path("/dev/shm")


class Skipped(Exception):
    """A group cannot run on this machine; says why."""


class Environment:
    """`disk` is a directory on the file system to measure; `scale` shortens every run."""

    def __init__(self, disk: Path, scale: float) -> None:
        self.disk = disk
        self.scale = scale

    def count(self, usual: int, at_least: int = 1) -> int:
        """How many of something a run does, at the chosen scale."""
        return max(at_least, int(usual * self.scale))

    def start_ray(self) -> None:
        """Start Ray once per process."""
        if not ray.is_initialized():
            # The broker's actors take normal priority where they may; the floors' are to have the same.
            os.environ.setdefault("RAY_worker_niceness", "0")
            ray.init(
                address="local",
                num_cpus=4,
                # Ray frees blocks a moment after they are given up: those of two reads of 1 GiB have room.
                object_store_memory=4 << 30,
                include_dashboard=False,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )

    @contextmanager
    def directory(self, *, tmpfs: bool = False) -> Iterator[Path]:
        """An empty directory on disk or tmpfs, removed afterwards."""
        path = Path(tempfile.mkdtemp(prefix="pulsar-ray-bench-", dir=TMPFS if tmpfs else self.disk))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def broker(self, *, tmpfs: bool = False, **settings: Any) -> Iterator[Broker]:
        """A broker on an empty directory, with a client."""
        self.start_ray()
        with self.directory(tmpfs=tmpfs) as path:
            client = pulsar_ray.Client(data_dir=path / "data", **settings)
            try:
                _ = client.cluster  # connects, and by that starts the broker on this directory
                yield Broker(client, path)
            finally:
                client.close()
                stop_broker()


class Broker:
    """A client of a running broker, and the processes behind it."""

    def __init__(self, client: pulsar_ray.Client, directory: Path) -> None:
        self.client = client
        self.directory = directory

    def topic(self) -> str:
        """The full name of a new topic."""
        return f"persistent://public/default/bench-{next(_NUMBERS)}"

    def partition(self, topic: str) -> Any:
        """The handle of a topic's partition actor."""
        return ray.get_actor(partition_name(topic), namespace=NAMESPACE)

    def dispatcher(self, topic: str, subscription: str) -> Any:
        """The handle of a subscription's dispatcher actor."""
        return ray.get_actor(dispatcher_name(topic, subscription, durable=True), namespace=NAMESPACE)

    def meter(self, topic: str, subscription: str | None = None) -> CpuMeter:
        """Of the client, the partition and, if there is one, the dispatcher."""
        return CpuMeter(self.pids(topic, subscription))

    def pids(self, topic: str, subscription: str | None = None) -> dict[str, int]:
        """The broker's processes behind a topic."""
        pids = {"partition": self.pid(self.partition(topic))}
        if subscription is not None:
            pids["dispatcher"] = self.pid(self.dispatcher(topic, subscription))
        return pids

    @staticmethod
    def pid(actor: Any) -> int:
        """The process an actor of the broker runs in."""
        stats: dict[str, Any] = ray.get(actor.stats.remote())
        return int(stats["pid"])


def run_inside(actor: Any, work: Callable[..., Any], *args: Any) -> Any:
    """Run `work(instance, *args)` inside an actor's process, by the call that every Ray actor has for it."""
    return ray.get(actor.__ray_call__.remote(work, *args))
