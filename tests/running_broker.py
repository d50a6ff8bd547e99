"""A broker on a Ray of its own, whose actors a test kills, freezes and tampers with."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psutil
import ray

import pulsar_ray
from pulsar_ray.admin import Admin
from pulsar_ray.launch.start import stop_broker
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import CONTROLLER, NAMESPACE, dispatcher_name, partition_name
from pulsar_ray.transport.ray_calls import RAY_CALLS
from tests.ending_processes import is_gone

RESTART_DEADLINE_S = 60.0
CALL_DEADLINE_S = 20.0


def partition_actor(topic: str) -> str:
    """The name of an unpartitioned topic's actor."""
    return partition_name(TopicName.parse(topic).full)


def dispatcher_actor(topic: str, subscription: str) -> str:
    """The name of the actor of a durable subscription on an unpartitioned topic."""
    return dispatcher_name(TopicName.parse(topic).full, subscription, durable=True)


class Broker:
    """Started by the first client; `close` stops it and its Ray.

    A process is on one Ray at a time: starting a broker closes the one that ran.
    """

    _running: ClassVar[Broker | None] = None

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        if Broker._running is not None:
            Broker._running.close()
        self.data_dir = data_dir
        self._settings = settings
        # On a machine that is busy it may not be up in time, and all tests of a module would fail of it.
        if not (_ray_starts() or _ray_starts()):
            _start_ray()
        self.address: str = ray.get_runtime_context().gcs_address
        self._clients: list[pulsar_ray.Client] = []
        Broker._running = self
        self.client().get_topic_partitions("warm-up")

    def client(self, **arguments: Any) -> pulsar_ray.Client:
        """A client of this process, closed with the broker."""
        client = pulsar_ray.Client(data_dir=str(self.data_dir), **arguments, **self._settings)
        self._clients.append(client)
        return client

    def handle(self, name: str) -> Any:
        """The actor's handle."""
        return ray.get_actor(name, namespace=NAMESPACE)

    def store(self) -> str:
        """The name of the store's actor."""
        names: list[str] = [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
        return next(name for name in names if name.startswith("pulsar_ray-store-"))

    def pid(self, name: str, timeout_s: float = CALL_DEADLINE_S) -> int:
        """The process that runs the actor now. Raises RayError or ValueError while none does."""
        method = "ready" if name == CONTROLLER else "probe"
        answer = self._call(name, method, timeout_s=timeout_s)
        return int(answer["pid"] if name == CONTROLLER else answer)

    def kill(self, name: str) -> int:
        """SIGKILL the actor's process and wait until it is gone; its process id."""
        pid = self.pid(name)
        # It may have ended by itself since it answered.
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            process.kill()
            wait_until(lambda: is_gone(process), what=f"the end of {name}")
        return pid

    def freeze(self, name: str) -> int:
        """SIGSTOP the actor's process; its process id."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        return pid

    def thaw(self, pid: int) -> None:
        """SIGCONT, if the process is still there."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def run_in(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run `function(actor, *args)` in the actor's process."""
        return self._call(name, "__ray_call__", function, *args)

    def wait_for_other(self, name: str, former_pid: int) -> int:
        """Wait until another process than the former one serves as this actor; its process id."""

        def other() -> int:
            try:
                pid = self.pid(name)
            except (ray.exceptions.RayError, ValueError):
                return 0
            return pid if pid != former_pid else 0

        return wait_until(other, RESTART_DEADLINE_S, f"a successor of {name}, process {former_pid}")

    def stats(self, name: str) -> dict[str, Any]:
        """The actor's own counters."""
        result: dict[str, Any] = self._call(name, "stats")
        return result

    def _call(self, name: str, method: str, *args: Any, timeout_s: float = CALL_DEADLINE_S) -> Any:
        # A method does not keep the handle, which older Rays need for the call.
        handle = self.handle(name)
        return ray.get(getattr(handle, method).remote(*args), timeout=timeout_s)

    def forget(self, topic: str) -> None:
        """End this process's clients, and delete the topic with its actors."""
        self._shut_down_clients()
        with Admin(self.address) as admin:
            admin.topics.delete(topic, force=True)

    def _shut_down_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            client.shutdown()

    @property
    def is_running(self) -> bool:
        """Whether neither `close` nor the start of another broker has stopped this one."""
        return Broker._running is self

    def close(self) -> None:
        """Stop everything, once."""
        if not self.is_running:
            return
        Broker._running = None
        self._shut_down_clients()
        try:
            stop_broker()
        finally:
            with RAY_CALLS.kept_out():
                ray.shutdown()


class SharedBroker:
    """A broker for several modules: started at its first use, and again where one of them has closed it."""

    def __init__(self, make_data_dir: Callable[[], Path], **settings: Any) -> None:
        self._make_data_dir = make_data_dir
        self._settings = settings
        self._started: Broker | None = None

    def running(self) -> Broker:
        """The broker; it runs."""
        if self._started is None or not self._started.is_running:
            self._started = Broker(self._make_data_dir(), **self._settings)
        return self._started

    def close(self) -> None:
        """Stop the broker if it runs."""
        if self._started is not None:
            self._started.close()


def _ray_starts() -> bool:
    try:
        _start_ray()
        has_started = True
    except Exception:  # noqa: BLE001 - Ray raises no other for a node that is not up within 30 s
        with RAY_CALLS.kept_out():
            ray.shutdown()
        has_started = False
    if not has_started:
        _forget_what_ray_started()
    return has_started


def _forget_what_ray_started() -> None:
    """Collect what Ray has of the processes that it ended without waiting for their end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _start_ray() -> None:
    # As on the Ray that an embedded broker starts: actors that start are not starved by clients that compute.
    os.environ.setdefault("RAY_worker_niceness", "0")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        namespace="faults",
    )
