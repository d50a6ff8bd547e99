"""The subscriptions of a dispatcher whose topic is stored."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.serving.shipping_link import ShippingLink
from pulsar_ray.broker.subscription.consumers.delivery_progress import StoredProgress
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.log.partition_link import Arming, PartitionFollower, PartitionLink
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.broker.subscription.subscription_admin import SubscriptionAdmin
from pulsar_ray.broker.subscription.subscription_parts import DispatcherContext, stored_subscription
from pulsar_ray.errors import PulsarException
from pulsar_ray.journal.ownership import first_epoch
from pulsar_ray.journal.shipped_disk import ShippedDisk
from pulsar_ray.journal.store_files import read_term
from pulsar_ray.lane.waiting import within
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory, remove_cursor
from pulsar_ray.managed_ledger.cursor.cursor_store import CursorStore
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorSubscription, ManagedCursor
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position
from pulsar_ray.session.requests import Advanced, OpenConsumer
from pulsar_ray.transport.cluster import SubscriptionRequest

LOOK_DEADLINE_S = 2.0
_FOLLOWER_NUMBERS = itertools.count(1 << 40)


class StoredSubscriptions:
    """Follows the partition's log, and feeds a durable subscription or readers from it."""

    can_park = True
    was_created = False

    def __init__(
        self, request: SubscriptionRequest, context: DispatcherContext, partition: PartitionLink
    ) -> None:
        self._request = request
        self._context = context
        self._partition = partition
        self._follower = PartitionFollower(partition, self._advanced, self._expired)
        self._expired_before = EARLIEST
        self._held_behind = LATEST
        self._log = LogView()
        self._number = next(_FOLLOWER_NUMBERS)
        self._arming = Arming(lambda is_armed: self._follower.follow(self._number, armed=is_armed))
        self._served: dict[str, ServedSubscription] = {}
        self.served: Mapping[str, OpenSubscription] = self._served
        self._gone = Figures()
        """Counts of readers that are gone."""
        self._admin: SubscriptionAdmin | None = None
        self._shipping: ShippingLink | None = None
        self._first_packet: asyncio.Future[None] = context.loop.create_future()
        self.progress = StoredProgress(partition, self._served)
        self.directory = ""
        self.epoch = 0
        self.log_end = EARLIEST

    def describe_found(self) -> str:
        if not self._request.durable:
            return "readers have no cursor that lasts"
        cursor = self._served[self._request.subscription].core.cursor
        ledger_id, entry_id = cursor.mark_delete
        return (
            f"a backlog of {cursor.backlog():,} entries behind {ledger_id}:{entry_id}, "
            f"{len(cursor.consumers)} consumers to wait for"
        )

    def troubles(self) -> dict[str, str]:
        return {name: text for name, served in self._served.items() if (text := served.trouble())}

    @property
    def acknowledged_entries(self) -> int:
        return sum(served.core.cursor.deleted.entries for served in self._served.values())

    @property
    def reach(self) -> tuple[str, str]:
        # The partition writes a new value each time it starts.
        return self._partition.reach

    # --- starting ---------------------------------------------------------------------------------

    async def start(self) -> None:
        attached = await self._follower.attach()
        self.directory = attached.directory
        if self._request.durable:
            self._expired_before = await self._open_durable()
        else:
            self.epoch = self._context.clock.now_ms()
        self._follower.follow(self._number, armed=False)
        await self._first_packet
        # Before anything is delivered of that.
        self._expired(self._expired_before)

    async def _register(self, *, create: bool) -> dict[str, Any]:
        request = self._request
        registered: dict[str, Any] = await self._partition.call(
            "register_subscription",
            name=request.subscription,
            durable=True,
            initial=request.initial_position,
            properties=request.properties,
            create=create,
        )
        return registered

    async def _open_durable(self) -> Position:
        """Open the cursor; returns how far the broker has acknowledged for it."""
        request = self._request
        registered = await self._register(create=request.create)
        self.was_created = registered["created"]
        self._number = registered["number"]
        directory = cursor_directory(Path(registered["directory"]), self._number)
        subscription = CursorSubscription(request.subscription, properties=dict(registered["properties"]))
        hold = Position(*registered["hold"])
        of_partition = Path(registered["directory"])
        shipping = self._context.new_link(int(of_partition.name), f"s/{self._number}/")
        disk = SYSTEM_DISK if shipping is None else ShippedDisk(of_partition, shipping)

        def opened() -> CursorStore:
            term = read_term(of_partition)
            least_epoch = 0 if term is None else first_epoch(term.term)
            return CursorStore.create(directory, subscription, hold, disk, least_epoch)

        store = await self._context.cursor_disk.run(opened)
        self._shipping = shipping
        self.follow_durability()
        self.epoch = store.epoch
        store.cursor.take_properties(subscription.properties)
        for incarnation in request.left:
            store.cursor.forget_consumer(incarnation)
        served = self._add(request.subscription, store.cursor, store)
        self._admin = SubscriptionAdmin(
            served,
            self._partition,
            self._log,
            self._context.reader,
            self.directory,
            ask_partition=self._end_messages,
            look_around=self.look_around,
            waiting=lambda: "" if shipping is None else shipping.waiting,
            seek=self.seek,
        )
        return Position(*registered["expired"])

    def _add(self, name: str, cursor: ManagedCursor, store: CursorStore | None) -> ServedSubscription:
        served = self._served[name] = stored_subscription(
            self._context,
            name,
            cursor,
            store,
            self._log,
            self.directory,
            self.epoch,
            self._number,
            shipping=self._shipping if store is not None else None,
            on_mark_delete=self._follower.move_hold,
            on_demand=self.update_arming,
            ask_partition=self._end_messages,
        )
        return served

    async def _end_messages(self, sending: Mapping[int, int], idle_ms: int) -> Any:
        pairs = [list(pair) for pair in sending.items()]
        return await self._partition.call_once("end_messages", {"sending": pairs, "idle_ms": idle_ms})

    # --- readers ----------------------------------------------------------------------------------

    async def prepare_open(self) -> None:
        """Wait for nothing: what a dispatcher is not sent it reads from the log."""

    async def open_reader(self, request: OpenConsumer) -> ServedSubscription:
        start = request.start or {"target": "latest", "inclusive": False}
        mark = Position(*await self._partition.call("seek_position", **start))
        cursor = ManagedCursor(CursorSubscription(request.subscription, is_durable=False), mark)
        return self._served.get(request.subscription) or self._add(request.subscription, cursor, None)

    def forget_reader(self, subscription: OpenSubscription) -> None:
        if not self._request.durable and not subscription.consumers:
            self._gone.add(subscription.figures().counts)
            if (served := self._served.pop(subscription.name, None)) is not None:
                served.let_go_of_forms()

    # --- following --------------------------------------------------------------------------------

    def _advanced(self, packet: Advanced) -> None:
        """Take in a packet of the partition: its log moved."""
        self._log.advanced(packet)
        self.log_end = self._log.last
        if not self._first_packet.done():
            self._first_packet.set_result(None)
        for subscription in self._served.values():
            if subscription.consumers:
                # Several packets that were read late have one turn.
                subscription.turn.schedule()

    def _expired(self, position: Position) -> None:
        """Take over what the partition has acknowledged for the subscription."""
        if self._request.durable:
            for subscription in self._served.values():
                subscription.extend_ledgers()
                # The partition has counted for itself what expired before this dispatcher started.
                subscription.expire(position, is_counted=position <= self._expired_before)

    def update_arming(self, *, is_opening: bool = False) -> None:
        """Arm for consumers with room; one that opens reads from the log what it missed."""
        self._arming.update(any(served.waits_for_entries for served in self._served.values()))
        if not self._request.durable:
            self._hold_for_readers()

    def _hold_for_readers(self) -> None:
        """Have the partition keep what readers of a compacted topic have not come by yet."""
        needed = (served.needed_behind() for served in self._served.values())
        behind = min((position for position in needed if position is not None), default=LATEST)
        if behind != self._held_behind:
            self._held_behind = behind
            self._follower.move_hold(behind)

    def follow_durability(self) -> None:
        """Let receipts wait for the object store as the settings of now say."""
        if self._shipping is not None:
            settings = self._context.settings
            self._shipping.set_durability(settings.remote_durability, settings.remote_lag_seconds)

    def tick(self) -> None:
        self._arming.repeat()
        if self._shipping is not None:
            self.follow_durability()
            self._shipping.tick()
        for subscription in self._served.values():
            subscription.tick()

    async def look_around(self) -> None:
        if not self._arming.is_armed:
            self._follower.follow(self._number, armed=False)
        # The answer to this call comes behind the answer to `follow`, and behind packets that were held back.
        with contextlib.suppress(PulsarException, asyncio.TimeoutError):
            await within(self._partition.call("last_message"), LOOK_DEADLINE_S)
        for subscription in self._served.values():
            subscription.extend_ledgers()

    async def learn_end(self) -> Any:
        await self._partition.call("last_message")

    # --- calls ------------------------------------------------------------------------------------

    async def seek(self, name: str, target: Any, inclusive: bool) -> int:
        subscription = self._served[name]
        if self._request.durable:
            self._follower.forget_hold()
            mark = await self._partition.call(
                "hold_for_seek", number=self._number, target=target, inclusive=inclusive
            )
        else:
            mark = await self._partition.call("seek_position", target=target, inclusive=inclusive)
        position = Position(*mark)
        generation = await subscription.seek(position.next() if position != EARLIEST else Position(0, 0))
        if self._request.durable:
            # Anything that expired meanwhile the seek has taken back.
            self._expired(Position(*(await self._register(create=False))["expired"]))
        return generation

    async def administer(self, name: str, arguments: dict[str, Any]) -> Any:
        assert self._admin is not None
        return await self._admin.call(name, arguments)

    async def remove(self) -> None:
        subscription = self._served[self._request.subscription]
        await self._partition.call("remove_subscription", number=self._number)
        # Of what is gone nothing need be written, and on a full disk nothing can be.
        for endpoint in list(subscription.consumers.values()):
            with contextlib.suppress(PulsarException):
                await subscription.close_consumer(endpoint)
        with contextlib.suppress(PulsarException):
            await subscription.close()
        if subscription.tracker is not None:
            await subscription.tracker.end()
        await self._context.cursor_disk.run(lambda: remove_cursor(Path(self.directory), self._number))

    def stats(self) -> dict[str, dict[str, Any]]:
        return {name: subscription.stats() for name, subscription in self._served.items()}

    def figures(self) -> Figures:
        figures = Figures()
        for each in (self._gone, *(subscription.figures() for subscription in self._served.values())):
            figures.add(each)
        return figures

    def problem(self) -> str:
        return next(filter(None, (served.problem() for served in self._served.values())), "")

    async def settle(self) -> None:
        for subscription in self._served.values():
            await subscription.flushed(subscription.core.cursor.version)
        # The answer comes behind the reports of mark-delete positions. Without it entries are kept longer.
        with contextlib.suppress(PulsarException, asyncio.TimeoutError):
            await within(self._partition.call_once("last_message", {}), LOOK_DEADLINE_S)

    # --- leaving ----------------------------------------------------------------------------------

    def leave(self) -> None:
        self._partition.close()

    async def close(self) -> None:
        self.leave()
        for subscription in self._served.values():
            with contextlib.suppress(PulsarException):
                await subscription.close()
