"""Rounds of a landing.

A round is ranges of the topics, each for one file, decided before a file is written.
The last round is the whole state of a landing. With it stored, all that follows may be done again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.rounds.topic_source import PlannedPartition

_VERSION = 1
SUFFIX = ".parquet"
# File systems take 255 bytes; positions and the round need up to 110.
_MAX_TOPIC_CHARACTERS = 140
_DIGEST_CHARACTERS = 16
# Spark skips files that begin with _ or a full stop, and takes % and = for something else.
_ESCAPED = re.compile(r"[^A-Za-z0-9-]")
_ROUND = re.compile(r"--(\d+)" + re.escape(SUFFIX) + "$")


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
    is_typed: bool = False
    """Whether values are columns of the topics' newest schema."""

    def check(self, stored: LandingIdentity) -> None:
        """Raise LandingMismatch if the landing was begun with other arguments."""
        for what in ("topics", "path", "columns", "avro_schema", "is_typed"):
            here, there = getattr(self, what), getattr(stored, what)
            if here != there:
                raise LandingMismatch(
                    f"landing {self.name!r} was begun with {what.removeprefix('is_')}={_shown(there)}, "
                    f"not {_shown(here)}: give the same, or take another name and another path"
                )


def _shown(value: str | bool | tuple[str, ...]) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)


@dataclass(frozen=True)
class FileRange:
    """Messages of one partition, from `first` to before `end`, for one file."""

    topic: str
    partition: int
    first: Position
    end: Position


@dataclass(frozen=True)
class LandingRound:
    """Files to be written together, and where each partition goes on behind them.

    Without files the round is landed.
    """

    number: int
    planned_ms: int
    """The files' time of modification, later in each round.

    Spark takes files in the order of that.
    """
    files: tuple[FileRange, ...] = ()
    positions: Mapping[str, Position] = field(default_factory=dict)

    @property
    def is_committed(self) -> bool:
        """Whether all files are there."""
        return not self.files

    @property
    def ends(self) -> dict[str, Position]:
        """The position behind the last file of each partition that has any."""
        return {file.topic: file.end for file in self.files}

    @property
    def reached(self) -> Mapping[str, Position]:
        """The positions before which everything is landed."""
        return {} if self.files else self.positions

    def committed(self) -> LandingRound:
        """The state behind the round."""
        return replace(self, files=())

    def name_of(self, file: FileRange) -> str:
        """The name of one of the files."""
        return file_name(file.topic, file.first, file.end, self.number)


def _files(planned: PlannedPartition, max_files: int) -> list[FileRange]:
    """The first files of a planned range."""
    if not planned.starts:
        return []
    bounds = [planned.first, *planned.starts[1:], planned.end]
    pieces = islice(pairwise(bounds), max_files)
    return [FileRange(planned.topic, planned.partition, first, end) for first, end in pieces]


def next_round(
    last: LandingRound, partitions: Iterable[PlannedPartition], max_files: int, now_ms: int
) -> LandingRound | None:
    """The round behind `last`, of up to `max_files` per partition.

    None if there is nothing to land.
    """
    files = [file for partition in partitions for file in _files(partition, max_files)]
    if not files:
        return None
    planned = LandingRound(last.number + 1, max(now_ms, last.planned_ms + 1), tuple(files))
    return replace(planned, positions={**last.positions, **planned.ends})


def file_name(topic: str, first: Position, end: Position, round_number: int) -> str:
    """Name the file of a topic's (or partition's) messages from `first` to before `end`.

    The same range of the same round always has the same name, so that a file that is written again after a
    crash is the same file to whoever has read it.
    """
    name = TopicName.parse(topic).full.split("://", 1)[1]
    escaped = _ESCAPED.sub(lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), name)
    if len(escaped) > _MAX_TOPIC_CHARACTERS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        escaped = f"{escaped[: _MAX_TOPIC_CHARACTERS - _DIGEST_CHARACTERS - 1]}-{digest}"
    positions = "--".join(f"{position.ledger_id}.{position.entry_id}" for position in (first, end))
    return f"{escaped}--{positions}--{round_number}{SUFFIX}"


def round_of(name: str) -> int | None:
    """The round that a file was landed in, None for other files."""
    match = _ROUND.search(name)
    return int(match[1]) if match else None


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
        "typed": identity.is_typed,
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
        stored.get("typed", False),
    )
    files = tuple(
        FileRange(topic, partition, Position(*first), Position(*end))
        for topic, partition, first, end in stored["files"]
    )
    positions = {topic: Position(*position) for topic, position in stored["positions"].items()}
    return identity, LandingRound(stored["round"], stored["planned_ms"], files, positions)
