"""The stub cluster as the process of one actor sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pulsar_ray.errors import NotConnected
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute


class AskedCluster(Protocol):
    """A cluster that looks at the process that asks before it starts an actor."""

    def resolve(
        self,
        topic: str,
        *,
        create: bool,
        was_open: bool,
        timeout_s: float,
        check: Callable[[], None],
    ) -> list[PartitionRoute]: ...

    def attach(
        self,
        address: str,
        client_id: str,
        *,
        want_tcp: bool,
        attempt: int,
        timeout_s: float,
        check: Callable[[], None],
    ) -> AttachReply: ...

    def controller(self, method: str, *arguments: Any, timeout_s: float) -> Any: ...


class StubProcess:
    """A cluster whose calls end with the process that makes them.

    A thread of an actor that went to sleep may still be on its way to attach. A real one dies
    with its process; here it must not wake what has just left.
    """

    def __init__(self, cluster: AskedCluster, has_ended: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._has_ended = has_ended

    def __getattr__(self, name: str) -> Any:
        self._check()
        return getattr(self._cluster, name)

    def resolve(
        self, topic: str, *, create: bool, was_open: bool = False, timeout_s: float
    ) -> list[PartitionRoute]:
        """See StubCluster.resolve."""
        return self._cluster.resolve(
            topic, create=create, was_open=was_open, timeout_s=timeout_s, check=self._check
        )

    def attach(
        self, address: str, client_id: str, *, want_tcp: bool, attempt: int, timeout_s: float
    ) -> AttachReply:
        """See StubCluster.attach."""
        return self._cluster.attach(
            address, client_id, want_tcp=want_tcp, attempt=attempt, timeout_s=timeout_s, check=self._check
        )

    def _check(self) -> None:
        if self._has_ended():
            raise NotConnected("the process that asks has ended, or is cut off")
