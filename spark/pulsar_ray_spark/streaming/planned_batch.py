"""The state of a query: its last batch, and where each partition stands.

The last record is the whole state. With a planned batch stored, a rerun has the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray_spark.errors import QueryMismatch

_VERSION = 1


class Place(NamedTuple):
    """The next message of a partition; `batch_index` rows of a batch there are taken already."""

    position: Position
    batch_index: int = 0

    def __str__(self) -> str:
        index = f":{self.batch_index}" if self.batch_index else ""
        return f"{self.position.ledger_id}:{self.position.entry_id}{index}"


BEGINNING = Place(EARLIEST)


@dataclass(frozen=True)
class QueryIdentity:
    """The things that a query keeps for good: its name, its id, and its topics."""

    name: str
    query_id: str
    topics: tuple[str, ...]
    """Full names, or one pattern behind `pattern:`."""

    def check(self, stored: QueryIdentity) -> None:
        """Raise QueryMismatch if the query was begun with other topics."""
        if self.topics != stored.topics:
            raise QueryMismatch(
                f"query {self.name!r} was begun with topics {list(stored.topics)}, not {list(self.topics)}: "
                f"take another name, or pulsar_ray_spark.drop_query({self.name!r}) to begin anew"
            )


@dataclass(frozen=True)
class PlannedBatch:
    """A batch of messages from `places` to `ends`.

    Without ends the batch is committed, and places lie behind it.
    """

    number: int
    places: Mapping[str, Place] = field(default_factory=dict)
    ends: Mapping[str, Place] = field(default_factory=dict)

    @property
    def is_committed(self) -> bool:
        """Whether its function has returned."""
        return not self.ends

    @property
    def ranges(self) -> dict[str, tuple[Place, Place]]:
        """First and end place of each partition that has messages in the batch."""
        return {name: (self.places.get(name, BEGINNING), end) for name, end in self.ends.items()}

    @property
    def reached(self) -> Mapping[str, Place]:
        """The places before which everything is committed."""
        return self.places

    def next(self, ends: Mapping[str, Place]) -> PlannedBatch:
        """The batch behind this one."""
        return PlannedBatch(self.number + 1, self.places, ends)

    def committed(self) -> PlannedBatch:
        """The state behind the batch."""
        return replace(self, places={**self.places, **self.ends}, ends={})


def is_behind(places: Mapping[str, Place], ends: Mapping[str, Place]) -> bool:
    """Whether there are messages from `places` to before `ends`."""
    return any(end > places.get(name, BEGINNING) for name, end in ends.items())


def encode_batch(identity: QueryIdentity, batch: PlannedBatch) -> bytes:
    """A batch as it is stored."""
    record = {
        "version": _VERSION,
        "name": identity.name,
        "id": identity.query_id,
        "topics": identity.topics,
        "batch": batch.number,
        "places": _packed(batch.places),
        "ends": _packed(batch.ends),
    }
    return json.dumps(record).encode()


def decode_batch(record: bytes) -> tuple[QueryIdentity, PlannedBatch]:
    """A stored batch. Raises QueryMismatch for anything else, and for one of a later version."""
    try:
        stored: dict[str, Any] = json.loads(record)
        version = stored["version"]
        if version == _VERSION:
            identity = QueryIdentity(stored["name"], stored["id"], tuple(stored["topics"]))
            places, ends = _unpacked(stored["places"]), _unpacked(stored["ends"])
            return identity, PlannedBatch(stored["batch"], places, ends)
    except (ValueError, KeyError, TypeError) as error:
        raise QueryMismatch(
            f"the topic of the query's plans holds {record[:200]!r}, which is none: take another name"
        ) from error
    raise QueryMismatch(f"the query's last plan is of version {version}, which a later pulsar_ray wrote")


def _packed(places: Mapping[str, Place]) -> dict[str, list[int]]:
    return {name: [*place.position, place.batch_index] for name, place in places.items()}


def _unpacked(packed: Mapping[str, list[int]]) -> dict[str, Place]:
    return {name: Place(Position(ledger, entry), index) for name, (ledger, entry, index) in packed.items()}
