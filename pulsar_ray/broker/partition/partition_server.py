"""A topic partition, without Ray:

the sole writer of its managed ledger and of the subscription registry with its holds.

Everything runs on the owner loop; the disk thread does what touches the disk. It waits for nobody:
dispatchers and clients ask, it answers when the answer is durable.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from pulsar_ray.broker.partition.disk_space import DiskSpaceWatch
from pulsar_ray.broker.partition.followers import Followers
from pulsar_ray.broker.partition.partition_stats import describe_partition, describe_subscriptions
from pulsar_ray.broker.partition.producer_endpoint import ProducerEndpoint
from pulsar_ray.broker.partition.publish_intake import PublishIntake
from pulsar_ray.broker.partition.range_plan import cut_range
from pulsar_ray.broker.partition.sleeping_cursors import SleepingCursors
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.clock import Clock
from pulsar_ray.config import Settings
from pulsar_ray.errors import (
    BrokerPersistenceError,
    InvalidConfiguration,
    PulsarException,
    SubscriptionNotFound,
)
from pulsar_ray.managed_ledger.cursor.cursor_directories import remove_forgotten
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.manifest import LEDGER_COUNTER_BITS
from pulsar_ray.managed_ledger.log.manifest_changes import mark_delete_before
from pulsar_ray.managed_ledger.log.manifest_records import Subscription
from pulsar_ray.model.position import Position
from pulsar_ray.session.control_calls import PARTITION_CALLS, check_call
from pulsar_ray.session.requests import (
    Call,
    CloseEndpoint,
    Done,
    Failed,
    Follow,
    MoveHold,
    OpenProducer,
    Publish,
    Request,
    encode_request,
)
from pulsar_ray.session.session_table import Session

logger = logging.getLogger(__name__)

HOLD_REPORT_DELAY_S = 0.1
LOW_DISK_TRIM_S = 10.0
STATS_SLICE = 100
"""Subscriptions described in one go: well below a millisecond."""


class PartitionServer:
    """Serves one partition's sessions; `on_fatal` ends the process (a fenced owner must not go on)."""

    def __init__(
        self,
        ledger: ManagedLedger,
        settings: Settings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        host: SessionHost,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.ledger = ledger
        self._clock = clock
        self._loop = loop
        self._host = host
        self._disk = DiskThread(loop, "disk")
        self._space = DiskSpaceWatch(ledger.directory, settings)
        self.followers = Followers(ledger, loop)
        self._cursors = SleepingCursors(Path(ledger.directory))
        self.intake = PublishIntake(
            ledger,
            settings,
            clock,
            loop,
            self._disk,
            on_durable=self.followers.advanced,
            on_fatal=on_fatal,
            disk_refusal=lambda: self._space.refusal,
            name_prefix=f"pulsar-ray-{ledger.identity.number}",
        )
        self._on_fatal = on_fatal
        self._holds: dict[int, Position] = {}
        self._hold_timer: asyncio.TimerHandle | None = None
        self._trimmed_at = loop.time()
        self._trim_interval_s = settings.retention_check_interval_in_seconds
        self.reach = self._write_reach_file()
        self._remove_forgotten_cursors()
        host.serve(self)

    def _remove_forgotten_cursors(self) -> None:
        """Those whose subscription was removed by a dispatcher that died before it had removed them."""
        ledger = self.ledger
        registered = {subscription.number for subscription in ledger.changes.subscriptions()}
        end = ledger.changes.next_subscription_number
        self._loop.run_in_executor(None, remove_forgotten, Path(ledger.directory), registered, end)

    def _write_reach_file(self) -> tuple[str, str]:
        """A random value beside the segments: who can read it back can read the segments."""
        path = Path(self.ledger.directory) / "reach"
        value = secrets.token_hex(16)
        staged = path.with_suffix(".new")
        staged.write_text(value)
        os.replace(staged, path)
        return str(path), value

    # --- sessions ---------------------------------------------------------------------------------

    def attach_details(self) -> dict[str, Any]:
        """What an attach answers besides the carrier's addresses."""
        self.ledger.check_owner()
        return {"epoch": self.ledger.epoch, "reach": self.reach, "directory": str(self.ledger.directory)}

    def on_request(self, session: Session, request: Request, body: memoryview) -> None:
        """One packet of an attached session.

        PulsarExceptions raised here close the carrier; the client attaches again.
        """
        if type(request) is Publish:
            self.intake.publish(session, request.producer_id, body, is_awaited=request.is_awaited)
            return
        match request:
            case Follow():
                self.ledger.check_owner()
                self.followers.follow(session, request)
                self._cursors.woke(request.subscription_number)
            case MoveHold(number, ledger_id, entry_id):
                self._hold_moved(number, Position(ledger_id, entry_id))
            case OpenProducer():
                self._open_producer(session, request)
            case CloseEndpoint(request_id, endpoint_id):
                self._close_endpoint(session, endpoint_id)
                session.send(encode_request(Done(request_id)))
            case Call():
                self._host.answer(session, request.request_id, self.call, request.method, request.arguments)
            case _:
                raise InvalidConfiguration(f"a partition does not answer {type(request).__name__}")

    def _open_producer(self, session: Session, request: OpenProducer) -> None:
        def open_now() -> Request:
            return self.intake.open_producer(session, request)

        async def open_later(holder: Session) -> None:
            attachment = session.attachment
            await self._host.outlast([holder])
            if not session.is_ended and session.attachment == attachment:
                self._answer_now(session, request.request_id, open_now)

        holder = self.intake.holder_beside(session, request.name)
        if holder is not None and holder.is_stopped:
            self._host.spawn(open_later(holder))
        else:
            self._answer_now(session, request.request_id, open_now)

    def _answer_now(self, session: Session, request_id: int, work: Callable[[], Request]) -> None:
        try:
            session.send(encode_request(work()))
        except PulsarException as error:
            session.send(encode_request(Failed(request_id, type(error).__name__, error.text)))

    def _close_endpoint(self, session: Session, endpoint_id: int) -> None:
        endpoint = session.endpoints.get(endpoint_id)
        if isinstance(endpoint, ProducerEndpoint):
            self.intake.close_producer(endpoint)

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """Its producers' names are free, its followers forgotten."""
        for endpoint in list(session.endpoints.values()):
            if isinstance(endpoint, ProducerEndpoint):
                self.intake.close_producer(endpoint)
        self.followers.forget(session)

    def tick(self) -> None:
        """Once a second: ownership, space, trimming, forgotten incarnations."""
        try:
            self.ledger.check_owner()
        except PulsarException as error:
            self._on_fatal(error)
            return
        self._disk.submit(self._space.probe, lambda *_: None)
        self._disk.submit(self.ledger.check_present, self._looked)
        self.intake.sample_rates()
        self.followers.catch_up()
        now_ms = self._clock.now_ms()
        self.ledger.incarnations.forget_idle(now_ms)
        if self._loop.time() - self._trimmed_at >= self._trim_interval():
            self._trimmed_at = self._loop.time()
            self._submit_change(self.ledger.changes.trim(now_ms))

    def _looked(self, _: None, error: BaseException | None) -> None:
        if isinstance(error, PulsarException):
            self._on_fatal(error)

    def _trim_interval(self) -> float:
        # Whoever waits for space does not wait for the next regular check.
        return min(LOW_DISK_TRIM_S, self._trim_interval_s) if self._space.is_low else self._trim_interval_s

    # --- holds ------------------------------------------------------------------------------------

    def _hold_moved(self, number: int, position: Position) -> None:
        self._holds[number] = position
        if self._hold_timer is None:
            self._hold_timer = self._loop.call_later(HOLD_REPORT_DELAY_S, self._write_holds)

    def _write_holds(self) -> None:
        self._hold_timer = None
        holds, self._holds = self._holds, {}
        for number, position in holds.items():
            if self.ledger.changes.has_subscription(number):
                refused = functools.partial(self._report_again, number, position)
                self._submit_change(self.ledger.changes.move_hold(number, position), refused)

    def _report_again(self, number: int, position: Position) -> None:
        """A hold that the disk did not take is written later, unless it has moved on by then."""
        self._holds.setdefault(number, position)
        if self._hold_timer is None:
            self._hold_timer = self._loop.call_later(LOW_DISK_TRIM_S, self._write_holds)

    def _submit_change(self, change: Any, on_refused: Callable[[], None] = lambda: None) -> None:
        """Carry out a change nobody waits for; a full disk only delays it."""
        if change is None:
            return

        def done(_result: Any, error: BaseException | None) -> None:
            outcome = self._settled(change, error)
            if isinstance(outcome, BrokerPersistenceError):
                logger.warning("%s", outcome)
                on_refused()
            elif isinstance(outcome, BaseException):
                self._on_fatal(outcome)

        self._disk.submit(change.run, done)

    async def _durable(self, change: Any) -> Any:
        """Carry out a change; the ledger takes in its end also when nobody waits for it any more.

        Raises BrokerPersistenceError if the disk refused it: then it is not in effect.
        """
        if change is None:
            return None
        ended: asyncio.Future[Any] = self._loop.create_future()

        def done(_result: Any, error: BaseException | None) -> None:
            outcome = self._settled(change, error)
            if ended.cancelled():
                return
            if isinstance(outcome, BaseException):
                ended.set_exception(outcome)
            else:
                ended.set_result(outcome)

        self._disk.submit(change.run, done)
        return await ended

    def _settled(self, change: Any, error: BaseException | None) -> Any:
        """What a change that ran has brought: its result, or the error to raise."""
        if error is None:
            return self.ledger.changes.finish(change)
        self.ledger.changes.fail(change)
        if isinstance(error, OSError):
            return BrokerPersistenceError(f"{self.ledger.directory}: the disk refused a change: {error}")
        return error

    # --- control calls ----------------------------------------------------------------------------

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A control call by name, over a session or the actor handle."""
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "register_subscription": self.register_subscription,
            "remove_subscription": self.remove_subscription,
            "hold_for_seek": self.hold_for_seek,
            "seek_position": self.seek_position,
            "last_message": self.last_message,
            "check_position": self.check_position,
            "grant_lease": self.grant_lease,
            "release_lease": self.release_lease,
            "plan_range": self.plan_range,
        }
        check_call(PARTITION_CALLS, "partition", name, arguments)
        self.followers.tell_held()
        return await methods[name](**arguments)

    async def register_subscription(
        self,
        name: str,
        durable: bool,
        initial: str | Sequence[int],
        properties: dict[str, str],
        create: bool,
    ) -> dict[str, Any]:
        """The subscription's number and hold position, durable before this answers; an existing one is
        returned as it is.

        `initial` is "earliest", "latest" or the [ledger id, entry id] of its first message.
        """
        existing = self.ledger.changes.find_subscription(name, durable)
        if existing is None:
            if not create:
                raise SubscriptionNotFound(
                    f"subscription {name!r} does not exist on {self.ledger.identity.topic}",
                    str(self.ledger.directory),
                )
            start: str | Position
            if not isinstance(initial, str):
                await self.check_position(initial)
                start = mark_delete_before(Position(*initial))
            else:
                start = initial
            change = self.ledger.changes.register(name, durable, start, properties)
            await self._durable(change)
            existing = self.ledger.changes.find_subscription(name, durable)
            assert existing is not None
        return {
            "number": existing.number,
            "hold": list(existing.hold),
            "directory": str(self.ledger.directory),
            "properties": existing.properties,
            "epoch": self.ledger.epoch,
        }

    async def remove_subscription(self, number: int) -> None:
        """Forget a subscription and its hold, durably."""
        if self.ledger.changes.has_subscription(number):
            await self._durable(self.ledger.changes.remove_subscription(number))

    async def hold_for_seek(self, number: int, target: str | int | list[int], inclusive: bool) -> list[int]:
        """Lower or raise the hold to where a seek goes; the mark-delete position to start from, clamped to
        what is stored.

        `target` is "earliest", "latest", a publish time in ms, or [ledger id, entry id].
        """
        mark = Position(*await self.seek_position(target, inclusive))
        return list(await self._durable(self.ledger.changes.move_hold(number, mark)))

    async def seek_position(self, target: str | int | list[int], inclusive: bool) -> list[int]:
        """The mark-delete position a seek goes to; changes nothing."""
        ledger = self.ledger
        if target == "latest":
            last = ledger.last_position
            return list(mark_delete_before(last) if inclusive else last)
        if target == "earliest":
            return list(mark_delete_before(ledger.first_position))
        if isinstance(target, int):
            search = ledger.begin_position_at_time(target)
            return list(mark_delete_before(await self._disk.run(search.run)))
        assert not isinstance(target, str)
        position = Position(target[0], target[1])
        return list(ledger.changes.clamp(mark_delete_before(position) if inclusive else position))

    async def last_message(self) -> dict[str, Any]:
        """Position of the newest stored entry, [-1, -1] of an empty log, and its messages if a batch; and of
        the first that is left, behind it if none is.
        """
        return {**self.ledger.last_message(), "first": list(self.ledger.first_position)}

    async def check_position(self, position: Sequence[int]) -> None:
        """Raise InvalidConfiguration for a position of another topic; it need not exist."""
        ledger_id, entry_id = position
        identity = self.ledger.identity
        if ledger_id >> LEDGER_COUNTER_BITS != identity.number:
            raise InvalidConfiguration(
                f"the message id {ledger_id}:{entry_id} is not one of {identity.topic}: "
                "give an id of this topic"
            )

    async def grant_lease(self, first: list[int], last: list[int], expires_ms: int) -> dict[str, Any]:
        """A hold with an expiry for readers without a subscription, with the segments the range lies in."""
        change = self.ledger.changes.grant_lease(Position(*first), Position(*last), expires_ms)
        lease_id = await self._durable(change)
        return {"lease_id": lease_id, **self.describe_log()}

    async def plan_range(self, start: Any, end: Any, slice_bytes: int, lease_ms: int) -> dict[str, Any]:
        """The files that hold a range, under a lease.

        `end` is exclusive; both bounds as `seek_position` takes them, or {"subscription": name} for the entry
        behind that subscription's mark-delete position.
        """
        first, stop = await self._bound(start), await self._bound(end)
        last = self.ledger.last_position
        stop = min(stop, last.next())
        groups = cut_range(self.ledger.segments(), self.ledger.index_points(), first, stop, slice_bytes)
        if first >= stop:
            groups = []
        lease = self.ledger.changes.grant_lease(first, last, self._clock.now_ms() + lease_ms)
        lease_id = await self._durable(lease)
        return {"lease_id": lease_id, "first": list(first), "end": list(stop), "groups": groups}

    async def _bound(self, bound: Any) -> Position:
        if isinstance(bound, dict):
            known = self.ledger.changes.find_subscription(bound["subscription"], True)
            if known is None:
                raise SubscriptionNotFound(
                    f"subscription {bound['subscription']!r} does not exist on {self.ledger.identity.topic}"
                )
            return known.hold.next()
        if bound == "latest":
            return self.ledger.last_position.next()
        return Position(*await self.seek_position(bound, inclusive=True)).next()

    async def release_lease(self, lease_id: int) -> None:
        """Give a lease back before it expires."""
        await self._durable(self.ledger.changes.release_lease(lease_id))

    def describe_log(self) -> dict[str, Any]:
        """Where the durable log lies: first and last position, and the segments."""
        ledger = self.ledger
        return {
            "first": list(ledger.first_position),
            "last": list(ledger.last_position),
            "segments": [
                [s.ledger_id, s.segment_index, str(s.path), s.first_entry_id, s.end_offset, s.last_entry_id]
                for s in ledger.segments()
            ],
        }

    def stats(self) -> dict[str, Any]:
        """Counters of this partition since it started, its storage and its subscriptions."""
        return self._described(self.ledger.changes.subscriptions())

    async def gather_stats(self) -> dict[str, Any]:
        """As `stats`, in slices between which others get the loop.

        Of subscriptions whose dispatchers do not run the cursors are read first.
        """
        followed = self.followers.numbers
        subscriptions = self.ledger.changes.subscriptions()
        await self._cursors.learn([s for s in subscriptions if s.is_durable and s.number not in followed])
        described = self._described(subscriptions[:STATS_SLICE])
        for start in range(STATS_SLICE, len(subscriptions), STATS_SLICE):
            await asyncio.sleep(0)
            part = subscriptions[start : start + STATS_SLICE]
            described["subscriptions"] += describe_subscriptions(part, self._cursors, followed)
        return described

    def _described(self, subscriptions: list[Subscription]) -> dict[str, Any]:
        followed = self.followers.numbers
        return {
            **describe_partition(self.ledger, self.intake, followed),
            "subscriptions": describe_subscriptions(subscriptions, self._cursors, followed),
            "diskLow": self._space.is_low,
        }

    async def close(self) -> None:
        """Write what is pending, then release the directory."""
        await self._disk.run(lambda: None)
        await self._disk.run(self.ledger.close)
        self._disk.stop()
