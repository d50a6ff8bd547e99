"""The cluster over Ray: actors' handles by name, control calls with deadlines, tunnel calls."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray

from pulsar_ray.errors import BrokerGone, Moved, NotConnected, PulsarException, ServiceUnitNotReady
from pulsar_ray.session.requests import PROTOCOL_VERSION
from pulsar_ray.session.tunnel import ExchangeCall, pack_call, unpack_answer
from pulsar_ray.transport.actor_names import CONTROLLER, NAMESPACE
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute, SubscriptionRequest
from pulsar_ray.transport.ray_calls import RAY_CALLS, ClientCalls, RayCall, translated
from pulsar_ray.transport.retry import until
from pulsar_ray.transport.this_ray import actor_id, is_driver, is_starting, ray_job, worker_place

CALL_TIMEOUT_S = 5.0
READY_TIMEOUT_S = 60.0
WAKE_ANSWER_S = 15.0
"""How long the controller's answer to `await_wake` may take beyond the time it may wait."""
_STAYS = itertools.count(1)


class RayCluster:
    """Talks to the broker of the Ray cluster this process is connected to."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self._left: dict[str, str] = {}
        self._lives: dict[str, RayCall] = {}
        # A worker does not leave its Ray, and knows its job only while it works.
        self._job = ray_job() if is_driver() else ""
        self._calls = ClientCalls(RAY_CALLS, _once_left(weakref.ref(self)))
        self._told: list[Callable[[PulsarException], None]] = []

    def __del__(self) -> None:
        """The actors learn that this process needs them no more."""
        # The last to hold a cluster may be a thread that ends while Ray does.
        for life in self._lives.values():
            RAY_CALLS.let_go(life)

    def handle(self, name: str) -> Any:
        """The actor's handle. Raises Moved when nobody has the name."""
        handle = self._handles.get(name)
        if handle is None:
            with self._calls, translated(name):
                handle = ray.get_actor(name, namespace=NAMESPACE)
            if self._left.get(name) != actor_id(handle):
                self._left.pop(name, None)
            elif name != CONTROLLER:
                # Ray's workers remember names. One that looks a name up just as its actor dies may remember
                # the dead one for ever. The controller, which makes the actors, has their handles.
                handle = self.controller("handle", name, timeout_s=CALL_TIMEOUT_S)
                if handle is None:
                    raise Moved(f"{name}: no such actor; resolve it again")
            self._handles[name] = handle
        return handle

    def forget(self, name: str) -> None:
        """Look the name up again next time."""
        self._handles.pop(name, None)

    def _has_left(self, name: str) -> None:
        """Remember that a handle leads nowhere, by its actor's word or by Ray's."""
        handle = self._handles.pop(name, None)
        if handle is not None:
            self._left[name] = actor_id(handle)

    def call(self, name: str, method: str, *args: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """One control call with a deadline. Raises our errors only; Moved drops the cached handle."""
        try:
            handle = self.handle(name)
            with self._calls, translated(f"{name}.{method}"):
                return self._calls.result(self._calls.made(getattr(handle, method).remote(*args)), timeout_s)
        except Moved:
            self._has_left(name)
            raise

    def call_again(self, name: str, method: str, *args: Any, timeout_s: float) -> Any:
        """A harmless control call to an actor, repeated while it restarts."""
        return until(
            timeout_s,
            lambda left: self.call(name, method, *args, timeout_s=left),
            again=(Moved, NotConnected, ServiceUnitNotReady),
        )

    def controller(
        self,
        method: str,
        *args: Any,
        timeout_s: float = 30.0,
        was_done: Callable[[PulsarException], bool] = lambda _: False,
    ) -> Any:
        """A call to the controller, repeated while it restarts; `was_done` as for `until`.

        Every controller call may be repeated harmlessly.
        """
        return until(
            timeout_s,
            lambda left: self.call(CONTROLLER, method, *args, timeout_s=left),
            again=(Moved, NotConnected),
            was_done=was_done,
        )

    def await_wake(
        self, client_id: str, parked: Mapping[str, Sequence[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        """See Cluster.await_wake."""
        try:
            handle = self.handle(CONTROLLER)
            with self._calls, translated("controller.await_wake"):
                # Before the controller knows of a consumer that is parked.
                self._stay_at(handle, client_id)
                answered = self._calls.made(handle.await_wake.remote(client_id, parked, timeout_s))
                awake: list[str] = self._calls.result(answered, timeout_s + WAKE_ANSWER_S)
        except Moved:
            self._has_left(CONTROLLER)
            raise
        return awake

    def resolve(
        self, topic: str, *, create: bool, was_open: bool = False, timeout_s: float
    ) -> list[PartitionRoute]:
        """The topic's partitions, some of which may be away. Raises TopicNotFound, InvalidTopicName."""
        rows = self.controller("resolve", topic, create, was_open, timeout_s=timeout_s)
        return [PartitionRoute(*row) for row in rows]

    def partitions(self, topic: str, timeout_s: float) -> list[PartitionRoute]:
        """The partitions a topic has, none of which is started. Raises TopicNotFound."""
        rows = self.controller("partitions", topic, timeout_s=timeout_s)
        return [PartitionRoute(*row) for row in rows]

    def topics(self, namespace: str, timeout_s: float) -> list[tuple[str, int]]:
        """(full name, partitions or 0) of a namespace's topics. Raises TopicNotFound for a missing one."""
        rows = self.controller("list_topics", namespace, timeout_s=timeout_s)
        return [(name, partitions) for name, partitions in rows]

    def dispatcher(self, request: SubscriptionRequest, timeout_s: float) -> str:
        """The address of the subscription's dispatcher, started if it does not run."""
        address: str = self.controller("dispatcher", *request.asked, timeout_s=timeout_s)
        return address

    def attach(
        self, address: str, client_id: str, *, want_tcp: bool, attempt: int, timeout_s: float
    ) -> AttachReply:
        """Attach to an actor. Raises its typed refusal, Moved, NotConnected or Timeout."""
        arguments = (client_id, PROTOCOL_VERSION, want_tcp, attempt, worker_place())
        return AttachReply(**self.call(address, "attach", *arguments, timeout_s=timeout_s))

    def exchange(
        self,
        address: str,
        session_id: int,
        attachment: int,
        token: bytes,
        up: tuple[int, Sequence[tuple[int, Any]]],
    ) -> RayCall:
        """Start one tunnel call."""
        handle = self.handle(address)
        with self._calls, translated(f"{address}.exchange"):
            packed = pack_call(ExchangeCall(session_id, attachment, token, *up))
            return self._calls.made(handle.exchange.remote(packed))

    def exchange_result(self, handle: RayCall, timeout_s: float) -> tuple[int, list[tuple[int, bytes]]]:
        """Wait for the packets of a tunnel call. Raises SessionLost, NotConnected, Moved, Timeout."""
        with self._calls, translated("exchange"):
            return unpack_answer(self._calls.result(handle, timeout_s))

    def tie_life(self, address: str, session_id: int, attachment: int, token: bytes) -> None:
        """Have the actor await a call of this process that does not end.

        Ray then notifies the actor of our death.
        """
        with self._calls, translated(f"{address}.stay"):
            handle = self.handle(address)
            life = handle.stay.remote(session_id, attachment, token)
            self._keep_alive(address, (life, handle.watch.remote(session_id, [life])))

    def _stay_at(self, controller: Any, client_id: str) -> None:
        """Have the controller await a call of this process, as `tie_life` does.

        A controller that was restarted is given another one.
        """
        kept = self._lives.get(client_id)
        references = kept.reference if kept is not None else None
        if references is None or ray.wait([references[0]], timeout=0)[0]:
            number = next(_STAYS)
            life = controller.stay.remote(client_id, number)
            self._keep_alive(client_id, (life, controller.watch_client.remote(client_id, number, [life])))

    def _keep_alive(self, name: str, references: tuple[Any, ...]) -> None:
        """Keep calls until others follow under the name.

        An owner that forgets one looks like one that died.
        """
        kept = self._calls.made(references)
        former = self._lives.pop(name, None)
        if former is not None:
            RAY_CALLS.let_go(former)
        self._lives[name] = kept

    def dispatcher_gone(self, address: str, *, was_deleted: bool = False) -> None:
        """The subscription was deleted: its dispatcher leaves, so that a new one starts afresh."""
        self.controller("dispatcher_gone", address, was_deleted)
        self.forget(address)

    def is_starting(self, address: str) -> bool:
        """See Cluster.is_starting."""
        try:
            handle = self.handle(address)
            with self._calls, translated(address):
                return is_starting(handle)
        except PulsarException:
            return False

    def report_silent(self, address: str) -> None:
        """Ask the controller to look after an actor that does not answer.

        A silent controller is the stores' affair.
        """
        try:
            self.call(CONTROLLER, "probe", address, timeout_s=15.0)
        except PulsarException:
            self.forget(address)

    def end_calls(self, wait_s: float) -> None:
        """See Cluster.end_calls. `ray.shutdown()` ends a process of which a thread calls Ray just then."""
        self._calls.close(wait_s)

    @property
    def is_reachable(self) -> bool:
        """See Cluster.is_reachable."""
        return self._calls.are_open

    def when_gone(self, tell: Callable[[PulsarException], None]) -> None:
        """See Cluster.when_gone."""
        self._told.append(tell)

    def gone(self, error: PulsarException) -> None:
        """Fail every call from now on with `error`.

        The broker is no more, or this process is not on its Ray any more.
        """
        if not self._calls.fail(error):
            return  # somebody else has told of it
        self._handles.clear()
        self._left.clear()
        for tell in self._told:
            tell(error)

    def has_left(self) -> bool:
        """Whether this process has left the Ray of this cluster."""
        return bool(self._job) and ray_job() != self._job

    def left(self) -> None:
        """Forget all of a Ray that this process has left, to join the next one."""
        self._handles.clear()
        self._left.clear()
        self._lives.clear()

    def joined(self) -> None:
        """Go on with the broker of the Ray that this process has joined since `left`."""
        self._job = ray_job()

    def stats(self, address: str, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """An actor's own counters."""
        result: dict[str, Any] = self.call(address, "stats", timeout_s=timeout_s)
        return result

    def health(self, timeout_s: float) -> dict[str, Any] | None:
        """Ask the controller for the broker's HealthReport, described; None if no broker runs here.

        Raises Timeout, also while the controller restarts.
        """
        try:
            described: dict[str, Any] = until(
                timeout_s,
                lambda left: self.call(CONTROLLER, "health", timeout_s=left),
                again=(NotConnected,),
            )
        except Moved:
            return None
        return described

    def describe_broker(self, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any] | None:
        """Ask the controller to describe the broker, and wait while it restarts.

        None if no broker runs here.

        Raises what is wrong with its data directory, and Timeout.
        """
        try:
            described: dict[str, Any] = until(
                timeout_s,
                lambda left: self.call(CONTROLLER, "ready", timeout_s=left),
                again=(NotConnected,),
            )
        except Moved:
            return None
        return described


def _once_left(cluster: weakref.ref[RayCluster]) -> Callable[[], None]:
    """Return a look that ends a cluster once this process has left its Ray.

    Ray's functions would start another one by themselves, for a thread of a client that nobody closed.
    """

    def look() -> None:
        if (left := cluster()) is not None and left.has_left():
            left.gone(BrokerGone("this process has left the Ray of this client: make a new Client"))

    return look
