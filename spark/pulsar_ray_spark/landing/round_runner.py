"""One round of a landing after the other: decide, write, acknowledge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from pulsar_ray.clock import Clock
from pulsar_ray.data.planning.plan import Bound
from pulsar_ray.errors import DataLost
from pulsar_ray.model.position import Position
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.landing.file_writing import FileJob, WrittenFile
from pulsar_ray_spark.landing.folder import Folder
from pulsar_ray_spark.landing.rounds import (
    LandingIdentity,
    LandingRound,
    decode_round,
    encode_round,
    next_round,
)
from pulsar_ray_spark.landing.topic_source import TopicSource

MAX_FILES_PER_PARTITION = 8
"""Of a round: what is to be written again after a crash stays small."""


class RecordLog(Protocol):
    """Keeps the last round; see PlanLog."""

    last: bytes | None

    def append(self, record: bytes) -> None: ...


@dataclass(frozen=True)
class RoundProgress:
    """A round that is landed; files that were there before it began are not counted."""

    round: int
    files: int
    messages: int
    stored_bytes: int
    duration_ms: int
    timestamp_ms: int
    positions: Mapping[str, Position]


class RoundRunner:
    """Lands rounds.

    A round is stored in the log before its files are written, and its messages are acknowledged behind them.
    So whoever takes over after a crash writes the same files, and no others, before it decides anything.
    """

    def __init__(
        self,
        identity: LandingIdentity,
        source: TopicSource,
        folder: Folder,
        log: RecordLog,
        write: Callable[[Sequence[FileJob]], Iterable[WrittenFile]],
        clock: Clock,
        file_bytes: int,
    ) -> None:
        self._identity = identity
        self._source = source
        self._folder = folder
        self._log = log
        self._write = write
        self._clock = clock
        self._file_bytes = file_bytes
        self._last = LandingRound(0, 0)
        self._is_landed = False

    def begin(self, start: Bound) -> RoundProgress | None:
        """Finish the last round of former processes, or begin a new landing at `start`.

        Raises LandingMismatch if the landing was begun with other arguments, or its folder by another one.
        """
        if self._log.last is None:
            self._begin_anew(start)
            return None
        identity, self._last = decode_round(self._log.last)
        self._identity.check(identity)
        self._folder.begin()
        self._describe()
        return self._land(self._last)

    def land_next(self, ends: Mapping[str, Position]) -> RoundProgress | None:
        """Land a round of the messages before `ends`; None if all of them are landed.

        After an error the same round is landed first, for it is decided.
        """
        if not self._is_landed:
            return self._land(self._last)
        planned = self._source.plan(ends, self._last.positions, self._file_bytes)
        found = next_round(self._last, planned, MAX_FILES_PER_PARTITION, self._clock.now_ms())
        if found is None:
            return None
        self._log.append(encode_round(self._identity, found))
        self._last, self._is_landed = found, False
        return self._land(found)

    def ends(self) -> dict[str, Position]:
        """The position behind the last message of each partition that there is now."""
        return self._source.ends()

    def _begin_anew(self, start: Bound) -> None:
        self._check_folder()
        # Not before: what is half written in another landing's folder is being written.
        self._folder.begin()
        first = LandingRound(0, self._clock.now_ms(), (), self._source.first_positions(start))
        self._log.append(encode_round(self._identity, first))
        self._last = first
        self._describe()
        if start != "earliest":
            self._source.acknowledge(first.positions)
        self._is_landed = True

    def _check_folder(self) -> None:
        text = self._folder.description()
        if text is not None:
            raise LandingMismatch(
                f"{self._folder.path} is the folder of landing {json.loads(text)['name']!r}, unknown "
                f"under the name {self._identity.name!r}: take another path, or delete the folder "
                "and Spark's checkpoints of it"
            )

    def _describe(self) -> None:
        if self._folder.description() is None:
            known = {
                "name": self._identity.name,
                "topics": self._identity.topics,
                "columns": self._identity.columns,
                "avro_schema": self._identity.avro_schema,
            }
            self._folder.describe(json.dumps(known))

    def _land(self, landing_round: LandingRound) -> RoundProgress:
        began_ms = self._clock.monotonic_ms()
        with ExitStack() as leases:
            jobs = []
            for file in landing_round.files:
                name, planned_ms = landing_round.name_of(file), landing_round.planned_ms
                try:
                    leased = leases.enter_context(self._source.leased(file))
                except DataLost:
                    if self._folder.has(name):
                        continue  # landed before its topic was deleted
                    raise
                jobs.append(
                    FileJob(
                        leased.read_range,
                        self._folder,
                        name,
                        self._identity.columns,
                        planned_ms,
                        leased.lost,
                        self._identity.avro_schema,
                    )
                )
            written = list(self._write(jobs))
        self._source.acknowledge(_moved(landing_round))
        self._is_landed = True
        return RoundProgress(
            landing_round.number,
            sum(file.messages > 0 for file in written),
            sum(file.messages for file in written),
            sum(file.stored_bytes for file in written),
            self._clock.monotonic_ms() - began_ms,
            self._clock.now_ms(),
            landing_round.positions,
        )


def _moved(landing_round: LandingRound) -> dict[str, Position]:
    """The positions that a round has changed.

    The first one has no files, and sets all.
    """
    if not landing_round.files:
        return dict(landing_round.positions)
    return {file.topic: file.end for file in landing_round.files}
