"""Decides which closed segments are left to the object store alone (ADR 0142)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.serving.logs.line_limits import event
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.clock import Clock
from pulsar_ray.errors import NotAllowedError, PulsarException, RemoteStoreUnavailable
from pulsar_ray.journal.offloaded.resting_offers import write_resting_note
from pulsar_ray.journal.offloaded.room_plan import Offer
from pulsar_ray.ledger.offloaded import is_offloaded, offloaded_names
from pulsar_ray.ledger.segment_file import SegmentInfo
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.topic_name import TopicName, check_user_may_change, is_system_topic

logger = logging.getLogger(__name__)

NOT_RUN, RUNNING, SUCCESS, ERROR = "NOT_RUN", "RUNNING", "SUCCESS", "ERROR"
LOOK_S = 10.0
AT_ONCE = 8
"""Segments of one request to the store: one index is written for them."""
MOST_OFFERS = 256
"""Segments that a partition offers at once while the disk is too full."""
TRY_AGAIN_MS = 300_000
"""A partition that sleeps tries again so much later what did not go."""


class Thresholds:
    """Which segments go by themselves, of those that are here and closed. Pure."""

    def __init__(self, policies: PartitionPolicies) -> None:
        settings = policies.settings
        self.most_bytes = settings.managed_ledger_offload_threshold_in_bytes
        self.age_ms = settings.managed_ledger_offload_threshold_in_seconds * 1000
        self.lag_ms = settings.managed_ledger_offload_deletion_lag_ms
        self.disk_percent = settings.offload_disk_percent

    @property
    def are_set(self) -> bool:
        """Whether anything goes by itself."""
        return self.most_bytes >= 0 or self.age_ms >= 0 or self.disk_percent > 0

    def chosen(
        self,
        closed: Sequence[tuple[SegmentInfo, int]],
        here_bytes: int,
        now_ms: int,
    ) -> list[SegmentInfo]:
        """Return those that go, the oldest first.

        `closed` are segments with the time at which their ledger was closed, 0 for one that is open;
        `here_bytes` is what the topic has on the disk. How full that is is judged for all partitions of the
        node together, see `RoomPlan`.
        """
        going = []
        for segment, closed_ms in closed:
            since_ms = now_ms - closed_ms if closed_ms else 0
            is_old = closed_ms > 0 and 0 <= self.age_ms <= since_ms
            is_over = 0 <= self.most_bytes < here_bytes
            if since_ms < self.lag_ms or not (is_old or is_over):
                break
            going.append(segment)
            here_bytes -= segment.end_offset
        return going

    def is_full(self, used: int, total: int) -> bool:
        """Whether the disk is so full that segments have to go, however young they are."""
        return self.disk_percent > 0 and used * 100 >= total * self.disk_percent

    def next_due_ms(self, closed: Sequence[tuple[SegmentInfo, int]]) -> int | None:
        """Return when age has the first of them go; None: never."""
        times = [closed_ms for _, closed_ms in closed if closed_ms]
        return min(times) + max(self.age_ms, self.lag_ms) if times and self.age_ms >= 0 else None


def _offers(closed: Sequence[SegmentInfo]) -> list[Offer]:
    """Return those that are here, with the times of their files."""
    found = []
    for segment in closed:
        with contextlib.suppress(FileNotFoundError):
            found.append(Offer(segment.path.stat().st_mtime, segment.name, segment.end_offset))
    return found


class TopicOffload:
    """Runs on the owner loop of a partition; `shipping` is None without an object store.

    The node's store does the work (`Offloading.offload`): here is known what is left to it.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        policies: PartitionPolicies,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        shipping: ShippingLink | None,
    ) -> None:
        self._ledger = ledger
        self._policies = policies
        self._clock = clock
        self._loop = loop
        self._spawn = spawn
        self._shipping = shipping
        self._directory = Path(ledger.directory)
        self._away = {
            name for name in offloaded_names(self._directory) if not (self._directory / name).exists()
        }
        self._run: asyncio.Future[None] | None = None
        self._status, self._last_error = NOT_RUN, ""
        self._last_request_id = ""
        self._look_at = loop.time() + LOOK_S
        self.is_wanted_off = False
        """Whether the topic is to leave the object store once all is back."""

    # ---- what administrators ask

    async def offload(self, request_id: str, before: Sequence[int]) -> None:
        """Begin to leave closed segments that end before a position to the object store alone.

        [-1, -1] stands for all of them. A request may come again, and begins nothing then. Raises
        NotAllowedError while others are under way, of a system topic, and of one that is not shipped.
        """
        if not self._is_new(request_id):
            return
        behind = Position(*before)
        wanted = [
            segment
            for segment, _ in self._closed()
            if behind < (0, 0) or (segment.ledger_id, segment.last_entry_id) < behind
        ]
        self._begin("offload", wanted)

    async def fetch_back(self, request_id: str) -> None:
        """Begin to bring all segments back, as far as the disk has room.

        Raises as `offload`.
        """
        if self._is_new(request_id):
            await self._look_back()

    def _is_new(self, request_id: str) -> bool:
        """Whether a request did not come before. Raises NotAllowedError if it cannot be done."""
        topic = self._ledger.identity.topic
        check_user_may_change(TopicName.parse(topic))
        if request_id == self._last_request_id:
            return False
        if self.is_running:
            raise NotAllowedError(f"an offload of {topic} is in progress: wait for its status")
        if self._shipping is None or self._shipping.is_off or self.is_wanted_off:
            raise NotAllowedError(
                f"{topic} is not in an object store: start the broker with --remote, and let its policy "
                "remote_durability be async or sync"
            )
        self._last_request_id = request_id
        return True

    async def status(self) -> dict[str, Any]:
        """Describe the last offload, and how much is only in the object store."""
        here = [segment for segment in self._ledger.segments() if segment.name not in self._away]
        first = Position(here[0].ledger_id, here[0].first_entry_id) if here else None
        return {
            "status": self._status,
            "last_error": self._last_error,
            "offloaded_segments": len(self._gone()),
            "offloaded_bytes": self.offloaded_bytes,
            "local_bytes": sum(segment.end_offset for segment in here),
            "first_unoffloaded": list(first or self._ledger.last_position.next()),
        }

    @property
    def offloaded_bytes(self) -> int:
        """The bytes of the log that are only in the object store."""
        return sum(segment.end_offset for segment in self._gone()) if self._away else 0

    @property
    def problem(self) -> str:
        """Why nothing can be read of the object store; "" if it can."""
        if self._shipping is not None or not self._away:
            return ""
        return (
            f"{len(self._gone())} segments are only in the object store, and the broker knows of none: start "
            "it with --remote and the address that it had"
        )

    # ---- when

    @property
    def is_running(self) -> bool:
        """Whether segments are being left or brought back."""
        return self._run is not None and not self._run.done()

    @property
    def has_away(self) -> bool:
        """Whether something is only in the object store."""
        return bool(self._away and self._gone())

    def tick(self) -> None:
        """Begin what policies want; once a second."""
        if self._loop.time() >= self._look_at:
            self._look_at = self._loop.time() + LOOK_S
            self._spawn(self._look())

    async def settle(self) -> None:
        """Do what policies want by now, before the partition sleeps."""
        await self._look()
        if self._run is not None:
            await asyncio.wait([self._run])

    def next_due_ms(self) -> int | None:
        """Return when a partition that sleeps has something to leave; None: never."""
        if self._is_off:
            return None
        thresholds, closed, now_ms = Thresholds(self._policies), self._closed(), self._clock.now_ms()
        if thresholds.chosen(closed, self._here_bytes(), now_ms):
            return now_ms + TRY_AGAIN_MS
        return thresholds.next_due_ms(closed)

    def write_note(self) -> None:
        """Note what may leave a full disk while the partition sleeps. Raises OSError."""
        percent = 0 if self._is_off else Thresholds(self._policies).disk_percent
        names = [segment.name for segment, _ in self._closed()[:MOST_OFFERS]] if percent else []
        write_resting_note(self._directory, percent, names)

    @property
    def _is_off(self) -> bool:
        is_shipped = self._shipping is not None and not (self._shipping.is_off or self.is_wanted_off)
        return not is_shipped or is_system_topic(TopicName.parse(self._ledger.identity.topic))

    def _here_bytes(self) -> int:
        return sum(s.end_offset for s in self._ledger.segments() if s.name not in self._away)

    async def _look(self) -> None:
        shipping, topic = self._shipping, TopicName.parse(self._ledger.identity.topic)
        if shipping is None or shipping.is_off or self.is_running or is_system_topic(topic):
            return
        thresholds = Thresholds(self._policies)
        if self.is_wanted_off:
            await self._look_back()
        elif thresholds.are_set:
            wanted = thresholds.chosen(self._closed(), self._here_bytes(), self._clock.now_ms())
            if not wanted:
                wanted = await self._too_much(shipping, thresholds)
            if wanted and not self.is_running:
                self._begin("offload", wanted)

    async def _too_much(self, shipping: ShippingLink, thresholds: Thresholds) -> list[SegmentInfo]:
        """Return the segments of this partition that a too full disk is freed of."""
        usage = await self._loop.run_in_executor(None, shutil.disk_usage, self._directory)
        used = usage.total - usage.free
        if not thresholds.is_full(used, usage.total):
            return []
        closed = [segment for segment, _ in self._closed()[:MOST_OFFERS]]
        offers = await self._loop.run_in_executor(None, _offers, closed)
        self._away |= {segment.name for segment in closed} - {offer.name for offer in offers}
        try:
            going = set(await shipping.room((used, usage.total), thresholds.disk_percent, offers))
        except RemoteStoreUnavailable as error:
            self._last_error = error.text
            return []
        return [segment for segment in closed if segment.name in going]

    async def _look_back(self) -> None:
        """Bring segments back, as far as the disk has room."""
        usage = await self._loop.run_in_executor(None, shutil.disk_usage, self._directory)
        room = usage.free - self._policies.settings.low_water_mark_bytes(usage.total)
        wanted = []
        for segment in self._gone():
            room -= segment.end_offset
            if room < 0:
                self._last_error = "the disk has no room for what is to be brought back from the object store"
                break
            wanted.append(segment)
        if wanted and not self.is_running:
            self._begin("fetch back", wanted)

    def _closed(self) -> list[tuple[SegmentInfo, int]]:
        """Return the closed segments that may go, and when their ledgers were closed.

        Those stay that the next start reads, behind the log's last two checkpoints.
        """
        settings = self._policies.settings
        room_bytes, room_entries = 2 * settings.index_checkpoint_bytes, 2 * settings.index_checkpoint_entries
        closed_ms = {ledger.ledger_id: ledger.closed_ms for ledger in self._ledger.ledgers()}
        found = []
        for segment in reversed(self._ledger.segments()):
            if room_bytes <= 0 or room_entries <= 0:
                found.append((segment, closed_ms[segment.ledger_id]))
            room_bytes -= segment.end_offset
            room_entries -= segment.last_entry_id - segment.first_entry_id + 1
        return [each for each in reversed(found) if each[0].path.name not in self._away]

    def _gone(self) -> list[SegmentInfo]:
        return [segment for segment in self._ledger.segments() if segment.name in self._away]

    # ---- how

    def _begin(self, what: str, wanted: Iterable[SegmentInfo]) -> None:
        self._status, self._last_error = RUNNING, ""
        run = self._run = self._loop.create_future()
        self._spawn(self._carry_out(run, what, [segment.name for segment in wanted]))

    async def _carry_out(self, run: asyncio.Future[None], what: str, names: list[str]) -> None:
        topic = self._ledger.identity.topic
        try:
            for start in range(0, len(names), AT_ONCE):
                await self._move(what, names[start : start + AT_ONCE])
            self._status = SUCCESS
            if names:
                place = "only in the object store" if what == "offload" else "here again"
                event(logger, "%d segments are %s", len(names), place, topic=topic)
        except PulsarException as error:
            self._status, self._last_error = ERROR, error.text
            logger.warning("%s: segments stay where they are: %s", topic, error.text)
        finally:
            run.set_result(None)

    async def _move(self, what: str, names: list[str]) -> None:
        assert self._shipping is not None
        done = set(await self._shipping.move(what, names))
        if what == "offload":
            # The store may have left some as the partition woke up.
            done |= {name for name in names if is_offloaded(self._directory / name)}
            self._away |= done
        else:
            self._away -= done
        left = [name for name in names if name not in done]
        if left and {segment.name for segment in self._ledger.segments()} & set(left):
            raise RemoteStoreUnavailable(
                f"{len(left)} segments stay where they are: the store has not shipped them yet, or is being "
                "taken over; ask again"
            )
