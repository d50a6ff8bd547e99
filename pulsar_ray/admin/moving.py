"""How `Admin.topics` and `Admin.brokers` have partitions move between nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.options.checks import check_text
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import TopicName

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """A partition's move from one node's store to another one's."""

    partition: str
    source: str
    """The id of the store that it was in."""
    target: str
    state: str
    """Waiting, what is done just now, moved, or broken off."""
    total_bytes: int
    rest_bytes: int
    """So much was not copied yet."""
    reason: str
    """Why it was broken off, and the partition stayed where it was; else ""."""
    is_over: bool
    move_id: str

    @property
    def is_moved(self) -> bool:
        """Whether the partition is at its target."""
        return self.state == "moved"


def moves_of(described: Collection[dict[str, Any]]) -> list[PartitionMove]:
    """Return the moves that the controller describes."""
    return [
        PartitionMove(
            each["partition"],
            each["source"],
            each["target"],
            each["state"],
            each["totalBytes"],
            each["restBytes"],
            each["reason"],
            each["isOver"],
            each["moveId"],
        )
        for each in described
    ]


class Moving:
    """Moves partitions between the stores of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def store_on(self, node: str) -> str:
        """Return the id of the store that a host or an id names.

        An id of a store or a node may be given by how it begins. Raises NotAllowedError if there is none, or
        more than one.
        """
        check_text("node", node)
        nodes = [each for each in self._broker.ask("nodes") if each["storeId"]]
        found = sorted({each["storeId"] for each in nodes if node in (each["host"], each["storeId"])})
        if not found and node:
            found = sorted(
                {
                    each["storeId"]
                    for each in nodes
                    if each["storeId"].startswith(node) or each["nodeId"].startswith(node)
                }
            )
        if len(found) != 1:
            is_missing = "no node has that host, or a store or id that begins so" if not found else ""
            raise NotAllowedError(
                f"{node!r} does not name one store: {is_missing or 'it names ' + ', '.join(found)}; "
                "`pulsar-ray nodes` lists all of them"
            )
        return str(found[0])

    def moves(self) -> list[PartitionMove]:
        """Return the moves under way and the last ones that are over."""
        return moves_of(self._broker.ask("call_part", "moves", "describe"))

    def move(
        self, topic: str, node: str, shown: Callable[[list[PartitionMove]], None], *, waits: bool
    ) -> list[PartitionMove]:
        """Move what there is of a topic, and return how the moves ended, or stand.

        `shown` is called with those under way, again and again. A controller that was killed has broken
        them off, and is asked again.
        """
        store_id, name = self.store_on(node), TopicName.parse(topic).full
        over: dict[str, PartitionMove] = {}
        while ids := self._broker.ask("call_part", "moves", "move", name, store_id):
            known = self._until_over(ids, shown, waits=waits)
            over |= {move.partition: move for move in known}
            if len(known) == len(ids) or not waits:
                break
        return list(over.values())

    def drain(self, node: str, shown: Callable[[int], None], *, waits: bool) -> None:
        """Have a node's store become empty; `shown` is called with the partitions that are left."""
        store_id = self.store_on(node)
        self._broker.ask("call_part", "moves", "drain", store_id)
        while waits and (left := self._left_in(store_id)):
            shown(left)
            time.sleep(POLL_S)

    def _left_in(self, store_id: str) -> int:
        nodes = [each for each in self._broker.ask("nodes") if each["storeId"] == store_id]
        if not nodes or nodes[0]["state"] == "drained":
            return 0
        return max(1, int(nodes[0]["partitions"]))

    def undrain(self, node: str) -> None:
        """Let a node's store take partitions again."""
        self._broker.ask("call_part", "moves", "undrain", self.store_on(node))

    def balance(self, shown: Callable[[list[PartitionMove]], None], *, waits: bool) -> list[PartitionMove]:
        """Have partitions move until all stores have about as many, and return how that ended."""
        return self._until_over(self._broker.ask("call_part", "moves", "balance"), shown, waits=waits)

    def _until_over(
        self, ids: Collection[str], shown: Callable[[list[PartitionMove]], None], *, waits: bool
    ) -> list[PartitionMove]:
        """Wait for moves; those are missing that the controller knows no more."""
        while True:
            found = [each for each in self.moves() if each.move_id in ids]
            shown(found)
            if not waits or all(each.is_over for each in found):
                return found
            time.sleep(POLL_S)
