"""Rounds of a landing.

A round is ranges of the topics, each for one file, decided before a file is written.
The last round is the whole state of a landing. With it stored, all that follows may be done again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from pulsar_ray.model.position import EARLIEST, Position
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.landing.file_name import file_name

_VERSION = 1


@dataclass(frozen=True)
class LandingIdentity:
    """The arguments that a landing keeps for good, since its files depend on them."""

    name: str
    topics: tuple[str, ...]
    """Full names, or one pattern behind `pattern:`."""
    path: str
    columns: tuple[str, ...]
    avro_schema: str = ""
    """Of values that files have as structs."""

    def check(self, stored: LandingIdentity) -> None:
        """Raise LandingMismatch if the landing was begun with other arguments."""
        for what in ("topics", "path", "columns", "avro_schema"):
            here, there = getattr(self, what), getattr(stored, what)
            if here != there:
                raise LandingMismatch(
                    f"landing {self.name!r} was begun with {what}={_shown(there)}, not {_shown(here)}: "
                    "give the same, or take another name and another path"
                )


def _shown(value: str | tuple[str, ...]) -> str:
    return repr(value if isinstance(value, str) else list(value))


@dataclass(frozen=True)
class FileRange:
    """Messages of one partition, from `first` to before `end`, for one file."""

    topic: str
    partition: int
    first: Position
    end: Position


@dataclass(frozen=True)
class LandingRound:
    """Files to be written together, and where each partition goes on behind them."""

    number: int
    planned_ms: int
    """The files' time of modification, later in each round.

    Spark takes files in the order of that.
    """
    files: tuple[FileRange, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    def name_of(self, file: FileRange) -> str:
        """The name of one of the files."""
        return file_name(file.topic, file.first, file.end, self.number)


@dataclass(frozen=True)
class PlannedPartition:
    """A range of a partition.

    Pieces of about a file's size begin at `starts`. `trimmed` is the last entry that is gone for good, and
    `number` the partition's, which no other of its name has.
    """

    topic: str
    partition: int
    first: Position
    end: Position
    starts: Sequence[Position]
    trimmed: Position = EARLIEST
    number: int = 0

    def files(self, max_files: int) -> list[FileRange]:
        """The first files of the range."""
        if not self.starts:
            return []
        bounds = [self.first, *self.starts[1:], self.end]
        pieces = islice(pairwise(bounds), max_files)
        return [FileRange(self.topic, self.partition, first, end) for first, end in pieces]


def next_round(
    last: LandingRound, planned: Iterable[PlannedPartition], max_files: int, now_ms: int
) -> LandingRound | None:
    """The round behind `last`, of up to `max_files` per partition.

    None if there is nothing to land.
    """
    files = [file for partition in planned for file in partition.files(max_files)]
    if not files:
        return None
    ends = {file.topic: file.end for file in files}  # the last one of each
    planned_ms = max(now_ms, last.planned_ms + 1)
    return LandingRound(last.number + 1, planned_ms, tuple(files), {**last.positions, **ends})


def encode_round(identity: LandingIdentity, landing_round: LandingRound) -> bytes:
    """A round as it is stored."""
    files = [[file.topic, file.partition, [*file.first], [*file.end]] for file in landing_round.files]
    record = {
        "version": _VERSION,
        "name": identity.name,
        "topics": identity.topics,
        "path": identity.path,
        "columns": identity.columns,
        "avro_schema": identity.avro_schema,
        "round": landing_round.number,
        "planned_ms": landing_round.planned_ms,
        "files": files,
        "positions": {topic: [*position] for topic, position in landing_round.positions.items()},
    }
    return json.dumps(record).encode()


def decode_round(record: bytes) -> tuple[LandingIdentity, LandingRound]:
    """A stored round. Raises LandingMismatch for anything else, and for one of a later version."""
    try:
        stored: dict[str, Any] = json.loads(record)
        version = stored["version"]
        if version == _VERSION:
            return _decoded(stored)
    except (ValueError, KeyError, TypeError) as error:
        raise LandingMismatch(
            f"the topic of the landing's rounds holds {record[:200]!r}, which is none: take another name"
        ) from error
    raise LandingMismatch(f"the landing's last round is of version {version}, which a later pulsar_ray wrote")


def _decoded(stored: dict[str, Any]) -> tuple[LandingIdentity, LandingRound]:
    identity = LandingIdentity(
        stored["name"],
        tuple(stored["topics"]),
        stored["path"],
        tuple(stored["columns"]),
        stored.get("avro_schema", ""),
    )
    files = tuple(
        FileRange(topic, partition, Position(*first), Position(*end))
        for topic, partition, first, end in stored["files"]
    )
    positions = {topic: Position(*position) for topic, position in stored["positions"].items()}
    return identity, LandingRound(stored["round"], stored["planned_ms"], files, positions)
