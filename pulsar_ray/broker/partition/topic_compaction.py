"""Decides when a partition is compacted, and has it done (ADR 0128).

An actor that is there only while it works reads and writes; the partition names the result in its manifest,
with which it takes the place of the one before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.partition_stats import describe_compaction
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.clock import Clock
from pulsar_ray.errors import Fenced, NotAllowedError, PulsarException, ServiceUnitNotReady
from pulsar_ray.ledger.segment_file import COMPACTED_INDEX, segment_name
from pulsar_ray.managed_ledger.compaction.compacted_form import numbers_of_forms, remove_leftovers
from pulsar_ray.managed_ledger.compaction.compaction_order import (
    CompactionOrder,
    CompactionOutcome,
    JobState,
)
from pulsar_ray.managed_ledger.compaction.stored_blocks import SourceSegment
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Compacted
from pulsar_ray.model import metric_catalogue as metrics
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.model.topic_name import TopicName, check_user_may_change
from pulsar_ray.transport.cluster import Cluster

logger = logging.getLogger(__name__)

START_DEADLINE_S = 60.0
CALL_DEADLINE_S = 30.0
FIRST_LOOK_S = 0.02
LONGEST_LOOK_S = 0.5
_BUSY_SHARE = 0.1
"""The share of a processor beyond which a partition is busy."""
_COUNTS = (
    metrics.COMPACTIONS.name,
    metrics.FAILED_COMPACTIONS.name,
    metrics.COMPACTION_SECONDS.name,
    metrics.COMPACTION_READ_BYTES.name,
    metrics.COMPACTION_WRITTEN_BYTES.name,
)
NOT_RUN, RUNNING, SUCCESS, ERROR = "NOT_RUN", "RUNNING", "SUCCESS", "ERROR"


class TopicCompaction:
    """Runs on the owner loop. `on_changed` is called once another compacted form holds, or none."""

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        policies: PartitionPolicies,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        new_cluster: Callable[[], Cluster],
        on_changed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._policies = policies
        self._clock = clock
        self._loop = loop
        self._spawn = spawn
        self._new_cluster = new_cluster
        self._on_changed = on_changed
        self._directory = Path(ledger.directory)
        has_form = ledger.changes.compacted is not None
        self._status = SUCCESS if has_form else NOT_RUN
        self._last_error = ""
        self._last_request_id = ""
        self._share = float(has_form)
        self._failed_ms = 0
        self._run: asyncio.Future[None] | None = None
        self._last_number = 0
        self._doubtful: set[int] = set()
        """The disk refused the records of these forms; one may hold after a restart."""
        self._removing: asyncio.Future[None] | None = None
        self._drops = 0
        self._look_at = loop.time()
        self._are_leftovers_sought = True
        self._is_closed = False
        self._counts: dict[str, float] = dict.fromkeys(_COUNTS, 0)

    # ---- what administrators ask

    async def compact(self, request_id: str) -> None:
        """Begin to compact all that is stored by now.

        A request may come again, and begins nothing then. Raises NotAllowedError while a compaction runs
        that others asked for.
        """
        check_user_may_change(TopicName.parse(self._ledger.identity.topic))
        if request_id == self._last_request_id:
            return
        if self.is_running:
            raise NotAllowedError(
                f"a compaction of {self._ledger.identity.topic} is in progress: wait until its status is "
                "SUCCESS or ERROR"
            )
        self._last_request_id = request_id
        self._begin()

    async def status(self) -> dict[str, Any]:
        """Describe the last compaction; of errors only those since this partition started."""
        return {"status": self._status, "last_error": self._last_error, "progress": round(self._share, 3)}

    def describe(self) -> dict[str, Any]:
        """Describe the last compaction, with Pulsar's names where Pulsar has one."""
        compacted = self._ledger.changes.compacted
        return {"compaction": describe_compaction(compacted, self._status, self._failed_ms)}

    def figures(self) -> tuple[dict[str, float], dict[str, float]]:
        """Counters and gauges; none of a topic that nobody compacts."""
        if self._status == NOT_RUN:
            return {}, {}
        compacted = self._ledger.changes.compacted
        size = 0 if compacted is None else compacted.written_bytes
        gauges: dict[str, float] = {metrics.COMPACTING_PARTITIONS.name: int(self.is_running)}
        gauges[metrics.COMPACTED_BYTES.name] = size
        return self._counts, gauges

    async def drop(self) -> None:
        """Forget, durably, what was compacted; a compaction that runs comes to nothing."""
        self._drops += 1
        if (change := self._ledger.changes.drop_compacted()) is not None:
            await self._writer.durable(change)
            self._changed()

    def sources(self) -> dict[str, Any]:
        """Describe what has the latest message of each key just now, as TableSource has it."""
        settings = self._policies.settings
        return {
            "segments": [list(each) for each in self._segments()],
            "behind": list(self._horizon()),
            "horizon": list(self._ledger.readable_position),
            "retains_null_key": settings.topic_compaction_retain_null_key,
            "max_key_bytes": settings.compaction_max_key_bytes,
        }

    # ---- when

    @property
    def is_running(self) -> bool:
        """Whether a compaction is under way."""
        return self._run is not None and not self._run.done()

    @property
    def is_due(self) -> bool:
        """Whether so much was stored since the last compaction as the topic's policy says."""
        threshold = self._policies.settings.broker_service_compaction_threshold_in_bytes
        return 0 < threshold < self._bytes_behind()

    def tick(self) -> None:
        """Remove forms that nobody reads, and compact if it is time; once a second."""
        if self._are_leftovers_sought and not self.is_running and not self._is_read_in_bulk():
            self._are_leftovers_sought = False
            compacted = self._ledger.changes.compacted
            kept = self._doubtful | ({compacted.number} if compacted is not None else set())
            self._removing = self._loop.run_in_executor(None, self._remove_leftovers, kept)
        if self._loop.time() >= self._look_at:
            interval_s = self._policies.settings.broker_service_compaction_monitor_interval_in_seconds
            self._look_at = self._loop.time() + interval_s
            if not self.is_running and self.is_due:
                self._begin()

    @property
    def is_awaited(self) -> bool:
        """Whether an unused partition is to stay for a compaction."""
        return self.is_running or (self._status != ERROR and self.is_due)

    def close(self) -> None:
        """Wait for nobody any more."""
        self._is_closed = True

    def _bytes_behind(self) -> int:
        """About how many bytes are stored behind the horizon."""
        horizon = self._horizon()
        total = 0
        for segment in self._ledger.segments():
            last = Position(segment.ledger_id, segment.last_entry_id)
            if last <= horizon:
                continue
            size, entries = segment.end_offset, segment.last_entry_id - segment.first_entry_id + 1
            if segment.ledger_id == horizon.ledger_id and segment.first_entry_id <= horizon.entry_id:
                size = size * (segment.last_entry_id - horizon.entry_id) // max(entries, 1)
            total += size
        return total

    def _is_read_in_bulk(self) -> bool:
        """Whether a lease is on what was compacted, perhaps on an older form."""
        leases, now_ms = self._ledger.changes.leases(), self._clock.now_ms()
        return any(lease.first_ledger_id < 0 and lease.expires_ms > now_ms for lease in leases)

    def _segments(self) -> list[SourceSegment]:
        """The segments of the compacted form, and of the log behind it."""
        behind = self._horizon()
        log = [
            SourceSegment(s.ledger_id, s.segment_index, str(s.path), s.end_offset)
            for s in self._ledger.segments()
            if Position(s.ledger_id, s.last_entry_id) > behind
        ]
        return [*compacted_segments(self._directory, self._ledger.changes.compacted), *log]

    def _horizon(self) -> Position:
        compacted = self._ledger.changes.compacted
        return EARLIEST if compacted is None else compacted.horizon

    # ---- how

    def _begin(self) -> None:
        self._status, self._last_error, self._share = RUNNING, "", 0.0
        self._ledger.changes.is_compacting = True
        run = self._run = self._loop.create_future()
        self._spawn(self._carry_out(run))

    async def _carry_out(self, run: asyncio.Future[None]) -> None:
        topic = self._ledger.identity.topic
        began_ms = self._clock.now_ms()
        try:
            outcome = await self._compacted(began_ms)
            self._status, self._share = SUCCESS, 1.0
            if outcome is not None:
                self._count(outcome, self._clock.now_ms() - began_ms)
                text = "compacted: %d messages kept, %d removed, %d bytes of %d"
                counts = outcome.kept, outcome.removed, outcome.written_bytes, outcome.read_bytes
                event(logger, text, *counts, topic=topic)
        except PulsarException as error:
            self._status, self._last_error = ERROR, error.text
            self._counts[metrics.FAILED_COMPACTIONS.name] += 1
            self._failed_ms = self._clock.now_ms()
            event(logger, "not compacted: %s", error.text, level=logging.ERROR, topic=topic)
        finally:
            self._ledger.changes.is_compacting = False
            self._are_leftovers_sought = True
            run.set_result(None)

    def _count(self, outcome: CompactionOutcome, took_ms: int) -> None:
        for metric, number in (
            (metrics.COMPACTIONS, 1),
            (metrics.COMPACTION_SECONDS, took_ms / 1000),
            (metrics.COMPACTION_READ_BYTES, outcome.read_bytes),
            (metrics.COMPACTION_WRITTEN_BYTES, outcome.written_bytes),
        ):
            self._counts[metric.name] += number

    async def _compacted(self, began_ms: int) -> CompactionOutcome | None:
        """Compact, durably; None if nothing was stored since the last time."""
        horizon, drops = self._ledger.readable_position, self._drops
        if horizon <= self._horizon():
            return None
        order = await self._order(horizon, began_ms)
        outcome = await self._done_by_actor(order)
        if drops != self._drops:
            raise NotAllowedError(
                f"{order.topic} was truncated while it was compacted: nothing of it is left"
            )
        record = outcome.record(began_ms, self._clock.now_ms())
        await self._loop.run_in_executor(None, self._note_form, record)
        self._doubtful.add(record.number)
        await self._writer.durable(self._ledger.changes.take_compacted(record))
        self._doubtful.clear()
        self._changed()
        return outcome

    def _changed(self) -> None:
        self._are_leftovers_sought = True
        self._on_changed()

    async def _order(self, horizon: Position, now_ms: int) -> CompactionOrder:
        if self._removing is not None:
            await asyncio.wait([self._removing])
        found = await self._loop.run_in_executor(None, numbers_of_forms, self._directory)
        number = self._last_number = max(self._last_number, 0, *found) + 1
        settings = self._policies.settings
        identity = self._ledger.identity
        return CompactionOrder(
            str(self._directory),
            number,
            self._ledger.epoch,
            identity.topic,
            identity.partition,
            now_ms,
            self._segments(),
            self._horizon(),
            horizon,
            settings.topic_compaction_retain_null_key,
            settings.compaction_max_key_bytes,
        )

    def _done_by_actor(self, order: CompactionOrder) -> asyncio.Future[CompactionOutcome]:
        """Have an actor carry out an order, which a thread waits for."""
        done: asyncio.Future[CompactionOutcome] = self._loop.create_future()

        def settle(outcome: CompactionOutcome | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            elif outcome is not None:
                done.set_result(outcome)

        def run() -> None:
            outcome, failure = None, None
            try:
                outcome = self._asked(order)
            except BaseException as error:  # noqa: BLE001 - whoever waits gets it
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who waited
                self._loop.call_soon_threadsafe(settle, outcome, failure)

        threading.Thread(target=run, name="compaction", daemon=True).start()
        return done

    def _asked(self, order: CompactionOrder) -> CompactionOutcome:
        """Have an actor carry out an order; blocks.

        Raises its error, or why it has not ended in order.
        """
        cluster = self._new_cluster()
        load = _OwnLoad()
        address: str = cluster.controller("compactor", order.topic, timeout_s=START_DEADLINE_S)
        try:
            cluster.call_again(address, "begin", order, load.is_busy(), timeout_s=START_DEADLINE_S)
            pause_s = FIRST_LOOK_S
            waiting = threading.Event()
            while True:
                waiting.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_LOOK_S)
                if self._is_closed:
                    raise ServiceUnitNotReady(f"{order.topic} is being closed")
                state: JobState = cluster.call(
                    address, "look", order.key, load.is_busy(), timeout_s=CALL_DEADLINE_S
                )
                self._share = state.share
                if state.error is not None:
                    raise state.error
                if state.outcome is not None:
                    return state.outcome
        finally:
            with contextlib.suppress(PulsarException):
                cluster.controller("end_compactor", address, timeout_s=CALL_DEADLINE_S)

    def _note_form(self, record: Compacted) -> None:
        for segment in compacted_segments(self._directory, record):
            self._ledger.disk.note_durable(Path(segment.path))

    def _remove_leftovers(self, kept: set[int]) -> None:
        """Remove the files of all other forms; on a thread."""
        with contextlib.suppress(OSError, Fenced):
            if remove_leftovers(self._directory, kept, self._ledger.check_owner, self._ledger.disk):
                self._are_leftovers_sought = True


class _OwnLoad:
    """Says whether this process has been busy since the last time."""

    def __init__(self) -> None:
        self._at_s, self._used_s = time.monotonic(), time.process_time()

    def is_busy(self) -> bool:
        at_s, used_s = time.monotonic(), time.process_time()
        is_busy = used_s - self._used_s > _BUSY_SHARE * (at_s - self._at_s)
        self._at_s, self._used_s = at_s, used_s
        return is_busy


def compacted_segments(directory: Path, compacted: Compacted | None) -> list[SourceSegment]:
    """The segments of a compacted form, in order."""
    if compacted is None:
        return []
    index = COMPACTED_INDEX + compacted.number
    return [
        SourceSegment(ledger_id, index, str(directory / segment_name(ledger_id, index)), end_offset)
        for ledger_id, _, _, _, end_offset, _ in compacted.segments
    ]
