"""`Admin.stores`: what to do about a store that is lost for good."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pulsar_ray.admin.topic_calls import Broker, TopicCalls
from pulsar_ray.admin.topic_growth import TopicGrowth
from pulsar_ray.errors import NotAllowedError, WrongNode
from pulsar_ray.journal.remote_state import problem_of, remark_of
from pulsar_ray.model.topic_name import TopicName


@dataclass(frozen=True, slots=True)
class StoreLoss:
    """A store that is lost, and what lies there."""

    store_id: str
    host: str
    """Where it was last."""
    path: str
    partitions: tuple[str, ...]
    """The partitions, and topics without partitions, whose messages lie there."""
    shipped: tuple[str, ...] = ()
    """Those among them that an object store has.

    The end that was confirmed and not shipped is lost with the disk.
    """


@dataclass(frozen=True, slots=True)
class RemoteState:
    """How far a store is shipped into an object store."""

    store_id: str
    host: str
    url: str
    is_ready: bool
    """Whether its former life is closed, and all of it was shipped then."""
    partitions: int
    waiting_bytes: int
    """Synced on its disk and not in the object store yet."""
    lag_seconds: float
    """How old the oldest of that is."""
    shipped_bytes: int
    """Since the store's process started, as the counts below."""
    puts: int
    gets: int
    lists: int
    errors: int
    """Requests that failed; those are repeated."""
    problem: str
    """Why nothing goes on; "" if all is well."""
    remark: str
    """A cost that grows although all is shipped; "" if there is none."""
    cache_bytes: int
    """Of offloaded segments, kept on the node for readers."""
    cache_hits: int
    """Pieces of offloaded segments that readers found there."""
    cache_misses: int
    """Those that they waited for."""


_REMOTE_KEYS = (
    "storeId",
    "host",
    "url",
    "isReady",
    "partitions",
    "waitingBytes",
    "lagSeconds",
    "shippedBytes",
    "puts",
    "gets",
    "lists",
    "errors",
    "problem",
    "remark",
    "cacheBytes",
    "cacheHits",
    "cacheMisses",
)


class Stores:
    """The disks of the nodes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._calls = TopicCalls(broker)

    def remote(self) -> list[RemoteState]:
        """Return how far each store that is there is shipped into the object store."""
        return [RemoteState(*(said[key] for key in _REMOTE_KEYS)) for said in self._asked_remote()]

    def _asked_remote(self) -> list[dict[str, Any]]:
        defaults = dict.fromkeys(_REMOTE_KEYS, 0)
        states = [{**defaults, **said} for said in self._broker.ask("call_part", "lost_stores", "remote")]
        for state in states:
            state["problem"], state["remark"] = problem_of(state), remark_of(state)
        return states

    def losses(self, store_id: str) -> StoreLoss:
        """Return what would be lost with a store; nothing is changed.

        Raises NotAllowedError for a store that is there, for that of the catalog, and for one that nobody
        knows.
        """
        said = self._broker.ask("call_part", "lost_stores", "lost_with", store_id)
        lists = (tuple(said["partitions"]), tuple(said["shipped"]))
        return StoreLoss(said["storeId"], said["host"], said["path"], *lists)

    def forget(self, store_id: str, *, accept_loss: bool = False) -> StoreLoss:
        """Give a lost store up, and begin its partitions anew on other nodes.

        All that it shipped into an object store comes back, with ids of messages and subscriptions, as of the
        last object, but for partitions whose objects are missing or damaged. Those and the others are empty,
        take messages at once, and have numbers that never come again: streams and readers that stood in what
        was lost notice it (`DataLost`). The subscriptions that all other partitions of a topic have are made
        on the new one, and get its messages from the first on. A topic whose partitions all lay there has no
        subscriptions any more, and its consumers get SubscriptionNotFound. If the store comes back, what lies
        there is not served. May be repeated. Raises as `losses`, and NotAllowedError without `accept_loss`.
        """
        loss = self.losses(store_id)
        if not accept_loss:
            raise NotAllowedError(
                f"with store {store_id} of {loss.host} {len(loss.partitions)} partitions are lost, for "
                f"instance {', '.join(loss.partitions[:3])}: say accept_loss=True if its disk is lost"
            )
        beside: dict[str, dict[str, dict[str, str]]] = {}
        subscriptions = {}
        for partition in loss.partitions:
            name = TopicName.parse(partition)
            if name.is_partition:
                topic = name.partitioned_full
                if topic not in beside:
                    beside[topic] = self._common_subscriptions(topic)
                subscriptions[partition] = beside[topic]
        self._broker.ask(
            "call_part",
            "lost_stores",
            "forget",
            store_id,
            subscriptions,
            was_done=lambda error: isinstance(error, NotAllowedError),
        )
        return loss

    def _common_subscriptions(self, topic: str) -> dict[str, dict[str, str]]:
        try:
            routes = self._calls.routes_there(topic)
        except WrongNode:
            return {}
        return TopicGrowth(self._calls).common_subscriptions(routes)
