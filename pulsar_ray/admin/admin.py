"""The administrator's entry: connects as a client does and asks the controller."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pulsar_ray.admin.brokers import Brokers
from pulsar_ray.admin.namespaces import Namespaces
from pulsar_ray.admin.schemas import Schemas
from pulsar_ray.admin.stores import Stores
from pulsar_ray.admin.tenants import Tenants
from pulsar_ray.admin.topics import Topics
from pulsar_ray.broker.health.finding import HealthReport
from pulsar_ray.client.client import Client
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.endpoint.open_handles import FORGOTTEN
from pulsar_ray.client.options.checks import check_seconds, check_text
from pulsar_ray.client.options.client_options import check_paths, check_service_url
from pulsar_ray.config import check_settings
from pulsar_ray.errors import AlreadyClosed, ForkedClient, PulsarException
from pulsar_ray.lane.io_thread import IoThread
from pulsar_ray.lane.waiting import ensure_may_wait
from pulsar_ray.launch.connect import Connected, connect
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import Cluster


class Admin:
    """Creates, lists, describes and deletes what a broker holds.

    `service_url`, `data_dir`, `config_file` and further settings mean what they mean to `Client`; a broker is
    started if none runs. Thread-safe. Every method raises the typed errors of `pulsar_ray.errors`.
    """

    def __init__(
        self,
        service_url: str = "auto",
        *,
        data_dir: str | os.PathLike[str] | None = None,
        config_file: str | os.PathLike[str] | None = None,
        operation_timeout_seconds: float = 30.0,
        **settings: Any,
    ) -> None:
        check_service_url(service_url)
        check_settings(settings)
        check_paths(data_dir, config_file)
        check_seconds("operation_timeout_seconds", operation_timeout_seconds)
        self.operation_timeout_s = float(operation_timeout_seconds)
        self._arguments = (service_url, data_dir, config_file, settings)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._connected: Connected | None = None
        self._ending = Ending("admin")
        self._ending.when_forgotten(_close_later)
        IoThread.get()  # it begins what a finalizer hands on
        self.topics = Topics(self, self._new_client)
        self.namespaces = Namespaces(self)
        self.tenants = Tenants(self)
        self.brokers = Brokers(self, self._new_client)
        self.stores = Stores(self)
        self.schemas = Schemas(self)

    @classmethod
    def _on(cls, cluster: Cluster, **arguments: Any) -> Admin:
        """An admin of a cluster that is there already (`pulsar_ray.testing`); it finds no other one."""
        admin = cls(**arguments)
        admin._connected = Connected(cluster, "auto")
        admin.brokers = Brokers(admin, lambda: Client._on(cluster))  # noqa: SLF001 - as `_on`
        admin.topics = Topics(admin, lambda: Client._on(cluster))  # noqa: SLF001 - as `_on`
        return admin

    def _new_client(self) -> Client:
        service_url, data_dir, config_file, settings = self._arguments
        return Client(service_url, data_dir=data_dir, config_file=config_file, **settings)

    @property
    def cluster(self) -> Cluster:
        """The cluster it talks to; connects at the first use.

        Raises AlreadyClosed, ForkedClient; NotAllowedError in a send callback and wherever else nobody may
        wait.
        """
        ensure_may_wait("a call of Admin")
        self._ending.check()
        if os.getpid() != self._pid:
            raise ForkedClient("this Admin belongs to the parent process")
        with self._lock:
            if self._connected is None:
                service_url, data_dir, config_file, settings = self._arguments
                self._connected = connect(
                    service_url, data_dir=data_dir, config_file=config_file, settings=settings
                )
            return self._connected.cluster

    def ask(
        self,
        method: str,
        *arguments: Any,
        was_done: Callable[[PulsarException], bool] = lambda _: False,
    ) -> Any:
        """A call to the controller, repeated while it restarts; `was_done` as for `until`."""
        return self.cluster.controller(
            method, *arguments, timeout_s=self.operation_timeout_s, was_done=was_done
        )

    def broker(self) -> dict[str, Any]:
        """The controller's description of the broker.

        pid, data_dir, cluster_id, catalog_host, stores and settings.

        `refused_stores` and `away_stores` do not work; `unknown_partitions` lie in stores, and the catalog
        lacks them.
        """
        described: dict[str, Any] = self.ask("ready")
        return described

    def stats(self) -> dict[str, Any]:
        """`stores`: path, free and total bytes of every data directory; `actors`: counters by actor name.

        A store that is `away`, and whatever else does not answer within seconds, has an `error` instead.
        """
        actors: dict[str, Any] = self.ask("stats")
        return {"stores": actors.pop("stores"), "actors": actors}

    def health(self) -> HealthReport:
        """Find out which stores, partitions and subscriptions do not work.

        Nothing is woken, and nothing is written; `brokers.healthcheck` really publishes.
        """
        return HealthReport.of(self.ask("health"))

    def overview(
        self,
        text: str = "",
        *,
        sort: str = "backlog",
        limit: int = 200,
        topics: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The topics whose names contain a text, the first `limit` by a sorting, and `stores`.

        For watching all of a broker: one call, which wakes nobody and asks no topic. The figures are those
        that actors last told their stores, once in `metrics_interval_seconds`. A topic has `name`, `state`
        ("running", "asleep", "starting"), `msgRateIn`, `msgRateOut`, `msgThroughputIn`, `msgThroughputOut`,
        `msgBacklog` and `backlogSize` of the subscription with the largest backlog,
        `oldestBacklogMessageAgeSeconds`, `unackedMessages`, `subscriptionCount`, `producers`, `consumers`,
        `storageSize`, and `problem`: why nothing is stored or goes out. `topicsNotShown` counts the others,
        `counts` has how many topics are `running` and `sleeping`, and `msgRateIn`, `msgRateOut`, `restarts`
        and `partitionsAway` are of the whole broker. Named `topics` are described with the backlogs of their
        `subscriptions`. Raises InvalidConfiguration for another sorting or limit.
        """
        check_text("text", text)
        check_text("sort", sort)
        names = None if topics is None else [TopicName.parse(topic).partitioned_full for topic in topics]
        described: dict[str, Any] = self.ask("overview", text, sort, limit, names)
        return described

    def close(self) -> None:
        """Leave; the broker goes on. A second call raises AlreadyClosed."""
        self._ending.close(self._close)

    def _close(self) -> None:
        with self._lock:
            connected, self._connected = self._connected, None
        if connected is not None:
            connected.release()

    @property
    def ending(self) -> Ending:
        """Whether and how it was closed."""
        return self._ending

    def __del__(self) -> None:
        if self.__dict__.get("_connected") is not None:
            self._ending.forgotten(self)

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(AlreadyClosed):
            self.close()


def _close_later(admin: Admin) -> None:
    FORGOTTEN.take(admin, Admin.close)
