"""One round of a landing after the other: decide, write, acknowledge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pulsar_ray.clock import Clock
from pulsar_ray.data.planning.plan import Bound
from pulsar_ray.data.reading.topic_versions import TypedTopics
from pulsar_ray.errors import DataLost, InvalidConfiguration
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_schema import TopicSchema
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.landing.file_writing import FileJob, WrittenFile
from pulsar_ray_spark.landing.folder import Folder
from pulsar_ray_spark.landing.landing_round import (
    LandingIdentity,
    LandingRound,
    decode_round,
    encode_round,
    next_round,
)
from pulsar_ray_spark.rounds.durable_rounds import DurableRounds, RecordLog
from pulsar_ray_spark.rounds.topic_source import TopicSource

MAX_FILES_PER_PARTITION = 8
"""Of a round: what is to be written again after a crash stays small."""


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
    """Lands rounds; see DurableRounds.

    Files appear whole, or not at all, so that those of a round are its commit: one that is landed again
    leaves those that are there.
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
        newest: Callable[[Sequence[str]], TypedTopics | None] | None = None,
    ) -> None:
        """`newest` asks for the newest schema of topics, where values are its columns."""
        self._identity = identity
        self._source = source
        self._folder = folder
        self._write = write
        self._clock = clock
        self._file_bytes = file_bytes
        self._newest = newest
        self._target: TypedTopics | None = None
        self._rounds = DurableRounds(
            log,
            lambda each: encode_round(identity, each),
            source.acknowledge,
            LandingRound(0, 0),
            stores_commits=False,
        )

    def begin(self, start: Bound) -> RoundProgress | None:
        """Finish the last round of former processes, or begin a new landing at `start`.

        Raises LandingMismatch if the landing was begun with other arguments, or its folder by another one.
        """
        if self._rounds.resume(self._decoded):
            self._folder.begin()
        else:
            self._begin_anew(start)
        self._describe()
        self._rounds.release()
        return self._land_pending()

    def land_next(self, ends: Mapping[str, Position]) -> RoundProgress | None:
        """Land a round of the messages before `ends`; None if all of them are landed.

        After an error the same round is landed first, for it is decided.
        """
        self._rounds.release()
        if self._rounds.pending is None:
            last = self._rounds.last
            partitions = self._source.plan(ends, last.positions, self._file_bytes)
            found = next_round(last, partitions, MAX_FILES_PER_PARTITION, self._clock.now_ms())
            if found is not None:
                self._rounds.plan(found)
        return self._land_pending()

    def ends(self) -> dict[str, Position]:
        """The position behind the last message of each partition that there is now."""
        return self._source.ends(self._rounds.last.positions)

    def _begin_anew(self, start: Bound) -> None:
        self._check_folder()
        # Not before: what is half written in another landing's folder is being written.
        self._folder.begin()
        first = LandingRound(0, self._clock.now_ms(), (), self._source.first_positions(start))
        self._rounds.begin(first, releases=start != "earliest")

    def _decoded(self, record: bytes) -> LandingRound:
        identity, last = decode_round(record)
        self._identity.check(identity)
        return last

    def _check_folder(self) -> None:
        text = self._folder.description()
        if text is not None:
            raise LandingMismatch(
                f"{self._folder.path} is the folder of landing {json.loads(text)['name']!r}, unknown "
                f"under the name {self._identity.name!r}: take another path, or delete the folder "
                "and Spark's checkpoints of it"
            )

    def _describe(self) -> None:
        described = self._folder.description()
        typed = self._landed_schema(described)
        if described is None or typed != json.loads(described).get("typed"):
            known: dict[str, Any] = {
                "name": self._identity.name,
                "topics": self._identity.topics,
                "columns": self._identity.columns,
                "avro_schema": self._identity.avro_schema,
                "typed": typed,
            }
            self._folder.describe(json.dumps(known))

    def _landed_schema(self, described: str | None) -> dict[str, Any] | None:
        """Return the schema whose columns values have; None where they are bytes.

        Raises LandingMismatch for one whose columns the files so far cannot be read with.
        """
        if self._newest is None:
            return None
        target = self._newest(())
        if target is None:
            raise InvalidConfiguration(
                f"none of the topics {list(self._identity.topics)} has a schema: register one first, or land "
                "bytes, without typed=True"
            )
        before = None if described is None else json.loads(described).get("typed")
        if before is not None:
            landed = TypedTopics(before["topic"], TopicSchema.of(before), {})
            _check_grown(landed.type, target.type, self._identity.name)
        self._target = target
        return {"topic": target.topic, **target.target.fields()}

    def _versions(self, topic: str) -> TypedTopics | None:
        """Return the versions that the topic of a file has by now."""
        if self._target is None or self._newest is None:
            return None
        now = self._newest((topic,))
        return self._target if now is None else replace(self._target, written=now.written)

    def _land_pending(self) -> RoundProgress | None:
        landing_round = self._rounds.pending
        if landing_round is None:
            return None
        began_ms = self._clock.monotonic_ms()
        with ExitStack() as leases:
            jobs = []
            for file in landing_round.files:
                name, planned_ms = landing_round.name_of(file), landing_round.planned_ms
                try:
                    leased = leases.enter_context(
                        self._source.leased(file.topic, file.partition, file.first, file.end)
                    )
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
                        self._versions(file.topic),
                    )
                )
            written = list(self._write(jobs))
        self._rounds.commit()
        self._rounds.release()
        return RoundProgress(
            landing_round.number,
            sum(file.messages > 0 for file in written),
            sum(file.messages for file in written),
            sum(file.stored_bytes for file in written),
            self._clock.monotonic_ms() - began_ms,
            self._clock.now_ms(),
            landing_round.positions,
        )


def _check_grown(landed: pa.DataType, wanted: pa.DataType, name: str, path: str = "value") -> None:
    """Raise LandingMismatch for columns that files with the landed ones cannot be read with.

    Columns that are new are null in older files, in structs too; those that are gone are in older files only.
    """
    if pa.types.is_struct(landed) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in landed}
        for field in wanted:
            if field.name in known:
                _check_grown(known[field.name], field.type, name, f"{path}.{field.name}")
    elif pa.types.is_list(landed) and pa.types.is_list(wanted):
        _check_grown(landed.value_type, wanted.value_type, name, f"{path}[]")
    elif pa.types.is_map(landed) and pa.types.is_map(wanted):
        _check_grown(landed.item_type, wanted.item_type, name, f"{path}[]")
    elif landed != wanted:
        raise LandingMismatch(
            f"landing {name!r} has files in which {path} is {landed}, and the topic's newest schema has "
            f"{wanted}: parquet files of both cannot be read together; land under another name and path, "
            "from where this one ended, or go on after the schema has the former type again"
        )
