"""A subscription dispatcher, without Ray.

It serves one durable subscription, or all readers of a partition.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

from pulsar_ray.broker.figures.actor_report import READERS, ActorReport
from pulsar_ray.broker.figures.node_figures import DISPATCHER
from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.broker.serving.session_host import SessionHost
from pulsar_ray.broker.serving.sleeper import Retired
from pulsar_ray.broker.subscription.consumers.connected_consumers import ConsumerEndpoint
from pulsar_ray.broker.subscription.consumers.consumer_calls import (
    ConsumerCalls,
    EarlyAcknowledgments,
    PendingOpens,
    TopicAdmission,
    reach_of,
)
from pulsar_ray.broker.subscription.dispatcher_subscriptions import DispatcherSubscriptions
from pulsar_ray.broker.subscription.open_subscription import OpenSubscription
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import (
    ConsumerBusy,
    InvalidConfiguration,
    Moved,
    NotAllowedError,
    PulsarException,
    SessionLost,
    SubscriptionNotFound,
    text_naming,
)
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.policies import PolicyUpdate
from pulsar_ray.model.registrations import check_new_name, check_properties_size, check_sum, kept_bytes
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.session.control_calls import CONSUMER_CALLS, check_call
from pulsar_ray.session.requests import (
    Acknowledge,
    Call,
    CloseEndpoint,
    ConsumerOpened,
    Credit,
    Failed,
    NegativeAcknowledge,
    OpenConsumer,
    RedeliverUnacknowledged,
    Request,
    Unreadable,
    encode_request,
)
from pulsar_ray.session.session_table import Session
from pulsar_ray.transport.cluster import SubscriptionRequest

ConsumerRequest = Credit | Acknowledge | NegativeAcknowledge | RedeliverUnacknowledged | Unreadable

NO_USE = ("why_blocked", "key_owner", "describe_cursor")
"""Calls that look only: a subscription that is watched may sleep."""


class DispatcherServer:
    """Hands the requests of sessions to the subscriptions; waits for nobody on the data path.

    Made by `new_dispatcher`. `settings` are those that all its parts read; `disks` are the threads
    that the subscriptions use.
    """

    def __init__(
        self,
        request: SubscriptionRequest,
        subscriptions: DispatcherSubscriptions,
        in_force: PoliciesInForce,
        settings: DispatchSettings,
        admission: TopicAdmission,
        host: SessionHost,
        *,
        disks: Sequence[DiskThread],
    ) -> None:
        self._request = request
        self._in_force = in_force
        self._settings = settings
        self._admission = admission
        self.subscriptions = subscriptions
        self._served = subscriptions.served
        self.disks = disks
        self._host = host
        self._opens = PendingOpens()
        self._calls = ConsumerCalls(
            subscriptions.progress, request.topic, seek=subscriptions.seek, unsubscribe=self._unsubscribe
        )
        self._early = EarlyAcknowledgments(subscriptions.learn_end, host.spawn)
        self.is_removed = False
        self._removing = asyncio.Lock()
        self._first_user: int | None = None
        """The incarnation of the first consumer that was open here; 0 once an administrator came."""
        self._has_other_users = False
        self._uses = 0
        self._calls_under_way = 0
        self.can_park = subscriptions.can_park

    async def start(self) -> None:
        """Open the subscriptions, and serve. Raises refusals of the partition or of the cursor."""
        await self.subscriptions.start()
        # Policies may have changed meanwhile.
        self._take_settings()
        self._host.serve(self)

    def tick(self) -> None:
        """Look after the subscriptions; once a second."""
        self.subscriptions.tick()
        self._admission.tick()
        self._report_consumers()
        for subscription in self._served.values():
            holder = subscription.active_in_the_way()
            if holder is not None and holder.is_stopped:
                self._host.spawn(self._outlast(holder))
        self._update_arming()

    def _report_consumers(self) -> None:
        if self._admission.is_limited:
            self._host.spawn(self._admission.report(), is_work=False)

    async def _outlast(self, holder: Session) -> None:
        await self._host.outlast([holder])

    def _update_arming(self) -> None:
        self.subscriptions.update_arming(is_opening=bool(self._opens))

    # --- sessions ---------------------------------------------------------------------------------

    def attach_details(self) -> dict[str, Any]:
        """Return the part of an attach answer that is not about carriers."""
        self._check_not_removed()
        subscriptions = self.subscriptions
        return {
            "epoch": subscriptions.epoch,
            "reach": subscriptions.reach,
            "directory": subscriptions.directory,
        }

    def _check_not_removed(self) -> None:
        if self.is_removed:
            raise SubscriptionNotFound(f"subscription {self._request.subscription!r} was removed")

    def on_request(self, session: Session, request: Request, body: memoryview) -> None:
        """Take in one packet of an attached session."""
        self._uses += 1
        match request:
            case Credit() | Acknowledge() | NegativeAcknowledge() | RedeliverUnacknowledged() | Unreadable():
                self._on_consumer_request(session, request)
            case OpenConsumer():
                self._host.spawn(self._answer_opened(session, request))
            case CloseEndpoint(request_id, endpoint_id):
                self._host.answer(session, request_id, self._close_endpoint, session, endpoint_id)
            case Call():
                self._host.answer_call(session, request.request_id, self._call, session, request)
            case _:
                raise InvalidConfiguration(f"a dispatcher does not answer {type(request).__name__}")

    def _on_consumer_request(self, session: Session, request: ConsumerRequest) -> None:
        endpoint = session.endpoints.get(request.consumer_id)
        subscription = (
            self._served.get(endpoint.subscription) if isinstance(endpoint, ConsumerEndpoint) else None
        )
        if subscription is None or not isinstance(endpoint, ConsumerEndpoint):
            # Of a consumer that has left, or not opened yet here: it repeats all of it when it opens.
            if not isinstance(request, Credit) and request.request_id:
                text = "the consumer is not open here: attach again"
                session.send(encode_request(Failed(request.request_id, "SessionLost", text)))
            return
        match request:
            case Credit():
                subscription.credit(endpoint, request)
            case Acknowledge() if reach_of(request) > self.subscriptions.log_end:
                self._early.add(partial(self._acknowledge_late, session, subscription, endpoint, request))
            case _:
                subscription.settle(endpoint, request)

    def _subscription_of(self, endpoint: object) -> OpenSubscription | None:
        if not isinstance(endpoint, ConsumerEndpoint):
            return None
        return self._served.get(endpoint.subscription)

    def _acknowledge_late(
        self,
        session: Session,
        subscription: OpenSubscription,
        endpoint: ConsumerEndpoint,
        request: Acknowledge,
        error: PulsarException | None,
    ) -> None:
        # On another connection, or after another opening, the client repeats it.
        if session.endpoints.get(request.consumer_id) is not endpoint:
            return
        if error is None:
            subscription.settle(endpoint, request)
        elif request.request_id:
            session.send(encode_request(Failed(request.request_id, type(error).__name__, error.text)))

    async def _answer_opened(self, session: Session, request: OpenConsumer) -> None:
        try:
            with self._opens.under_way(session.id, request.consumer_id):
                reply: Request = await self._open_consumer(session, request)
        except PulsarException as error:
            text = text_naming(error, self._request.topic, request.subscription)
            reply = Failed(request.request_id, type(error).__name__, text, error.details)
        session.send(encode_request(reply))
        self._update_arming()

    def _check_type(self, request: OpenConsumer) -> None:
        """Raise NotAllowedError for a new consumer of a type that the topic does not allow.

        InvalidConfiguration for one that would read a compacted view where there is none.
        """
        if request.is_read_compacted:
            if request.consumer_type in (ConsumerType.Shared, ConsumerType.KeyShared):
                raise InvalidConfiguration(
                    "is_read_compacted=True: the latest value of each key is read in order, by an Exclusive "
                    "or Failover subscription"
                )
            if not TopicName.parse(self._request.topic).is_persistent:
                raise InvalidConfiguration(
                    f"is_read_compacted=True on {self._request.topic}: it is non-persistent and keeps "
                    "nothing; use a persistent:// topic"
                )
        allowed = self._settings.subscription_types
        name = ConsumerType(request.consumer_type).name.replace("KeyShared", "Key_Shared")
        if name not in allowed and not request.joined:
            raise NotAllowedError(
                f"{self._request.topic} has no {name} subscriptions, for its policy "
                f"subscription_types_enabled allows {', '.join(sorted(allowed))}: subscribe with one of "
                "these, or change the policy"
            )

    def _check_kept(self, request: OpenConsumer) -> None:
        """Refuse names and properties above the limits; that of a durable subscription is stored."""
        settings = self._settings
        check_new_name("consumer", request.name)
        if not self._request.durable:
            check_new_name("subscription", request.subscription)
        check_properties_size("consumer", request.properties, settings.max_properties_bytes)
        new = kept_bytes(request.name + request.subscription, request.properties)
        others = (
            endpoint.kept_bytes
            for subscription in self._served.values()
            for endpoint in subscription.consumers.values()
            if endpoint.incarnation != request.incarnation
        )
        check_sum("consumers", new, others, settings.max_properties_bytes_per_actor)

    async def _open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        self._check_type(request)
        self._check_kept(request)
        await self._wait_for_counted(session, request)
        async with self._admission.admitted(request):
            return await self._open_admitted(session, request)

    async def _wait_for_counted(self, session: Session, request: OpenConsumer) -> None:
        """Wait for the consumers from before a restart, if the topic limits their number.

        Until they are back, or stay away, nobody can count them; nor those that have just ended, until it is
        known how. Raises SessionLost.
        """
        subscription = self._served.get(request.subscription)
        if request.joined or subscription is None or not self._settings.max_consumers_per_topic:
            return
        attachment = session.attachment
        await self._host.know_how_ended()
        await subscription.wait_for_known()
        if session.is_ended or session.attachment != attachment:
            raise SessionLost("the connection was lost while its consumer waited: attach again")

    async def _open_admitted(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        self._update_arming()
        await self.subscriptions.prepare_open()
        if request.is_read_compacted and not request.joined:
            await self.subscriptions.look_around()  # a new reading begins with the newest form
        self._check_not_removed()
        subscription = self._served.get(request.subscription)
        if subscription is None:
            if self._request.durable:
                raise Moved(
                    f"this dispatcher does not serve subscription {request.subscription!r}: resolve it again"
                )
            subscription = await self.subscriptions.open_reader(request)
        try:
            opened = await subscription.open_consumer(session, request)
        except ConsumerBusy:
            attachment = session.attachment
            if not await self._host.outlast(subscription.consumers.sessions_beside(session)):
                raise
            if session.is_ended or session.attachment != attachment:
                raise SessionLost("the connection was lost while its consumer waited: attach again") from None
            opened = await subscription.open_consumer(session, request)
        self._check_not_removed()
        self._was_used_by(request.incarnation)
        return opened

    def _was_used_by(self, user: int) -> None:
        self._first_user = user if self._first_user is None else self._first_user
        self._has_other_users |= user != self._first_user

    async def _close_endpoint(self, session: Session, endpoint_id: int) -> None:
        await self._opens.ended(session.id, endpoint_id)
        await self._early.settled()
        endpoint = session.endpoints.get(endpoint_id)
        subscription = self._subscription_of(endpoint)
        if subscription is not None and isinstance(endpoint, ConsumerEndpoint):
            await self._close_consumer(subscription, endpoint)
            await self._admission.report()
        self._update_arming()

    async def _close_consumer(self, subscription: OpenSubscription, endpoint: ConsumerEndpoint) -> None:
        await subscription.close_consumer(endpoint)
        self.subscriptions.forget_reader(subscription)

    def on_session_ended(self, session: Session, crashed: bool) -> None:
        """Let everything wait for others that the session's consumers held."""
        for endpoint in list(session.endpoints.values()):
            subscription = self._subscription_of(endpoint)
            if subscription is not None and isinstance(endpoint, ConsumerEndpoint):
                subscription.detach(endpoint, crashed=crashed)
                self.subscriptions.forget_reader(subscription)
        self._report_consumers()
        self._update_arming()

    def end_deliveries(self, session: Session) -> bool:
        """Deliver nothing more to a session that has ended.

        Returns whether messages fail if its client has crashed.
        """
        fails = False
        for endpoint in session.endpoints.values():
            subscription = self._subscription_of(endpoint)
            if subscription is not None and isinstance(endpoint, ConsumerEndpoint):
                fails |= subscription.end_deliveries(endpoint)
        return fails

    # --- calls ------------------------------------------------------------------------------------

    async def _call(self, session: Session, request: Call) -> Any:
        endpoint = session.endpoints.get(request.endpoint_id)
        subscription = self._subscription_of(endpoint)
        if subscription is None or not isinstance(endpoint, ConsumerEndpoint):
            raise SessionLost("the consumer is not open here: attach again")
        check_call(CONSUMER_CALLS, "dispatcher", request.method, request.arguments)
        await self._early.settled()
        return await self._calls.call(request.method, subscription, endpoint, request.arguments)

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Carry out an administrator's call (see `SubscriptionAdmin`) over the actor handle."""
        self._uses += name not in NO_USE
        self._calls_under_way += 1
        try:
            return await self._administered(name, arguments)
        finally:
            self._calls_under_way -= 1

    async def _administered(self, name: str, arguments: dict[str, Any]) -> Any:
        if not self._request.durable:
            raise InvalidConfiguration(
                "non-durable subscriptions are not administered: they end by themselves"
            )
        if name == "delete":
            return await self._delete(**arguments)
        if name == "check":
            return await self._check(**arguments)
        if name == "consumer_left":
            return self._served[self._request.subscription].await_no_more(**arguments)
        if name == "undo":
            return await self._undo(**arguments)
        self._was_used_by(0)
        return await self.subscriptions.administer(name, arguments)

    async def _delete(self, force: bool) -> None:
        """Delete the subscription. Raises NotAllowedError while consumers are connected, unless forced."""
        await self._check(unconnected=not force)
        await self._remove()

    async def _check(self, unconnected: bool) -> None:
        """Raise NotAllowedError while consumers are connected to an `unconnected` subscription.

        That it answers shows that it serves: a change of several partitions asks all of them first.
        """
        subscription = self._served[self._request.subscription]
        if not unconnected:
            return
        # Consumers that slept with this dispatcher are connected, too.
        await subscription.wait_for_known()
        if names := subscription.consumers.names():
            raise NotAllowedError(
                f"Subscription {subscription.name!r} of {self._request.topic} has active connected "
                f"consumers ({names}): close them, or force"
            )

    async def _undo(self, incarnation: int) -> None:
        """Delete the subscription again if this dispatcher created it, and for that consumer alone.

        The consumer was refused by another partition or topic that it wanted as well.
        """
        is_used = self._has_other_users or self._first_user not in (None, incarnation)
        if self.subscriptions.was_created and not is_used:
            await self._remove()

    async def _unsubscribe(self, subscription: OpenSubscription, endpoint: ConsumerEndpoint) -> None:
        if self._request.durable:
            await self._remove()
        else:
            await self._close_consumer(subscription, endpoint)

    async def _remove(self) -> None:
        async with self._removing:
            if self.is_removed:
                return
            self.is_removed = True
            try:
                await self.subscriptions.remove()
            except PulsarException:
                self.is_removed = False
                raise

    async def serves(self) -> bool:
        """Return whether its subscription is there; a removal under way is waited for."""
        async with self._removing:
            return not self.is_removed

    # --- policies ---------------------------------------------------------------------------------

    async def apply_policies(self, update: PolicyUpdate) -> None:
        """Let policies of the topic hold from now on.

        A late or repeated update changes nothing. Raises InvalidConfiguration for overrides that the
        settings refuse.
        """
        were_current = self._in_force.are_current
        is_news = self._in_force.take(update)
        if is_news or self._in_force.are_current != were_current:
            self._take_settings()
        if is_news:
            await self._admission.report()

    def _take_settings(self) -> None:
        self._settings.take(self._in_force.settings, are_current=self._in_force.are_current)
        for subscription in self._served.values():
            subscription.settings_changed()

    # --- sleeping ---------------------------------------------------------------------------------

    def activity(self) -> Hashable | None:
        """See `SleepingServer.activity`."""
        if self._host.is_working or self._calls_under_way or self._early.are_waiting:
            return None
        if any(subscription.is_busy for subscription in self._served.values()):
            return None
        return self._uses, self._host.clients, self.subscriptions.log_end

    async def settle(self) -> None:
        """Make cursors durable, and the partition know how far they are."""
        await self.subscriptions.settle()

    async def fall_asleep(self) -> Retired:
        """Close the cursors; the partition keeps watch over what time brings."""
        await self.close()
        return Retired()

    # --- stats, closing ---------------------------------------------------------------------------

    async def look_around(self) -> None:
        """Learn the partition's state of now."""
        await self.subscriptions.look_around()

    def stats(self) -> dict[str, Any]:
        """Describe each subscription; `consumers` counts all."""
        subscriptions = self.subscriptions.stats()
        return {
            "subscriptions": subscriptions,
            "consumers": [c for s in subscriptions.values() for c in s["consumers"]],
            "epoch": self.subscriptions.epoch,
        }

    async def report(self) -> ActorReport:
        """Return what the metrics of the node have of its subscriptions."""
        request = self._request
        return ActorReport(
            kind=DISPATCHER,
            topic=request.topic,
            subscription=request.subscription if request.durable else READERS,
            acknowledged=self.subscriptions.acknowledged_entries if request.durable else 0,
            figures=self.subscriptions.figures(),
            problem=self.subscriptions.problem(),
        )

    def leave(self) -> None:
        """Follow the partition no longer."""
        self.subscriptions.leave()

    async def give_up(self) -> None:
        """Keep nothing that another start would need, nor threads: this one has failed."""
        with contextlib.suppress(Exception):
            await self.close()
        for disk in self.disks:
            disk.end()

    async def close(self) -> None:
        """Make cursors durable and leave."""
        await self.subscriptions.close()
