"""One subscription of a non-persistent topic in its dispatcher's process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from pulsar_ray.broker.figures.actor_report import Figures
from pulsar_ray.broker.subscription.consumers.connected_consumers import (
    MAX_BODY_BYTES,
    MAX_GRANTS_PER_PACKET,
    ConnectedConsumers,
    ConsumerEndpoint,
    EndpointFactory,
    check_limit,
    spec_of,
)
from pulsar_ray.broker.subscription.open_subscription import SettleRequest
from pulsar_ray.broker.subscription.subscription_stats import ConsumerTraffic, traffic_figures
from pulsar_ray.clock import Clock
from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.grant import Grant
from pulsar_ray.dispatch.inspect.key_stats import key_shared_stats
from pulsar_ray.dispatch.key_shared.sticky_key import Slots, SlotsOfBlocks, Slotting
from pulsar_ray.dispatch.non_persistent import NonPersistentDispatcher
from pulsar_ray.errors import PulsarException
from pulsar_ray.format.compression import UnknownCodec
from pulsar_ray.model.message_id import EARLIEST, after_seeks
from pulsar_ray.model.metric_catalogue import DROPPED_MESSAGES
from pulsar_ray.session.packet_encoders import DeliverEncoder
from pulsar_ray.session.requests import ConsumerOpened, Credit, Done, OpenConsumer, encode_request
from pulsar_ray.session.session_table import Session

MAX_UNSENT_BYTES = 8 * 1024 * 1024
"""Unsent bytes of a connection above which its consumer gets nothing."""

Bodies = dict[tuple[int, int], memoryview]
"""The bytes of blocks by (ledger id, first entry id)."""


class PassingSender:
    """Writes a grant's bytes to the carrier at once; nothing waits here.

    `bodies` holds the blocks that are passing just now.
    """

    has_unsent = False

    def __init__(self, session: Session, encoder: DeliverEncoder, bodies: Bodies) -> None:
        self._session = session
        self._encode = encoder.encode
        self._bodies = bodies

    def send(self, grants: Sequence[Grant], generation: int) -> None:
        part: list[Grant] = []
        size = 0
        for grant in grants:
            if part and (size + grant.block.length > MAX_BODY_BYTES or len(part) == MAX_GRANTS_PER_PACKET):
                self._send(part, generation)
                part, size = [], 0
            part.append(grant)
            size += grant.block.length
        if part:
            self._send(part, generation)

    def _send(self, part: list[Grant], generation: int) -> None:
        body = [self._bodies[grant.block.ledger_id, grant.block.first_entry_id] for grant in part]
        self._session.send(self._encode(generation, part, body))

    def drop_below(self, generation: int) -> None:
        """Drop nothing: all is sent."""

    def end(self) -> None:
        """Drop nothing: all is sent."""


def has_room(endpoint: ConsumerEndpoint) -> bool:
    """Return whether a consumer is open, and its connection not full."""
    carrier = endpoint.session.carrier
    if carrier is None or not endpoint.is_on_carrier:
        return False
    return carrier.unsent_bytes <= MAX_UNSENT_BYTES


GENERATION = after_seeks(0)
"""That of all deliveries: nothing is sought, and nothing rewound."""


class PassingSubscription:
    """Runs on the owner loop; `bodies` is shared with the consumers' senders."""

    def __init__(
        self,
        name: str,
        core: NonPersistentDispatcher,
        consumers: ConnectedConsumers,
        new_endpoint: EndpointFactory,
        bodies: Bodies,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.name = name
        self.consumers = consumers
        self._core = core
        self._new_endpoint = new_endpoint
        self._bodies = bodies
        self._clock = clock
        self._loop = loop
        self._traffic = ConsumerTraffic(clock)

    # --- consumers --------------------------------------------------------------------------------

    async def open_consumer(self, session: Session, request: OpenConsumer) -> ConsumerOpened:
        """Attach a consumer, or attach it again. Raises ConsumerBusy, also for one consumer too many."""
        core = self._core
        check_limit(core.settings, core.consumers, request)
        numbering = self.consumers.numbering(
            request.incarnation, is_known=request.incarnation in core.consumers
        )
        is_same = request.numbering == numbering
        endpoint = self._new_endpoint(session, request, numbering)
        was_known = core.attach_consumer(
            spec_of(request, numbering),
            received=request.received if is_same else 0,
            received_messages=request.received_messages,
            credit=request.credit,
        )
        if not was_known:
            self._traffic.joined(request.incarnation)
        self.consumers.put(endpoint)
        # The answer goes first: what comes before it the client drops, for it does not know what it is yet.
        self._loop.call_soon(self._opened, endpoint)
        return ConsumerOpened(
            request.request_id, request.name, numbering, was_known and is_same, GENERATION, list(EARLIEST)
        )

    def _opened(self, endpoint: ConsumerEndpoint) -> None:
        endpoint.open((), GENERATION)
        self._elect()

    def _elect(self) -> None:
        """Elect the active consumer of a Failover subscription, and notify consumers of changes."""
        self._core.elect()
        self.consumers.notify_active(self._core.type.policy.active, GENERATION)

    def detach(self, endpoint: ConsumerEndpoint, *, crashed: bool) -> None:
        """Remove a consumer whose session has ended: others get what is published next."""
        if self.consumers.remove(endpoint):
            self._traffic.left(endpoint)
            self._traffic.crashed += crashed
            self._remove(endpoint)

    def end_deliveries(self, endpoint: ConsumerEndpoint) -> bool:
        """Nothing comes again here, so nothing fails."""
        return False

    async def close_consumer(self, endpoint: ConsumerEndpoint) -> None:
        """Remove a consumer that left by itself."""
        if self.consumers.remove(endpoint):
            self._traffic.left(endpoint)
        endpoint.session.endpoints.pop(endpoint.consumer_id, None)
        self._remove(endpoint)

    def _remove(self, endpoint: ConsumerEndpoint) -> None:
        self._core.remove_consumer(endpoint.incarnation)
        self._elect()

    async def wait_for_known(self) -> None:
        """Wait for nobody: consumers from before a restart are not remembered."""

    def await_no_more(self, incarnation: int) -> None:
        """Do nothing: nobody is waited for."""

    def active_in_the_way(self) -> Session | None:
        """Return None: messages that the active consumer does not take are lost."""
        return None

    # --- requests of consumers --------------------------------------------------------------------

    def credit(self, endpoint: ConsumerEndpoint, request: Credit) -> None:
        """Take a report of room and progress."""
        self._core.set_credit(endpoint.incarnation, request.credit, request.received, request.handed_over)
        self._traffic.credited(endpoint.incarnation)

    def nacks_wait(self, endpoint: ConsumerEndpoint, waiting: int, due_in_ms: int) -> None:
        """Do nothing: nothing comes again here."""

    def settle(self, endpoint: ConsumerEndpoint, request: SettleRequest) -> None:
        """Answer that it is done: nothing is kept that could be acknowledged or come again."""
        if request.request_id:
            endpoint.session.send(encode_request(Done(request.request_id)))

    # --- what is published ------------------------------------------------------------------------

    def publish(self, blocks: Sequence[BlockRef], bodies: Bodies) -> None:
        """Give blocks to consumers with room; for the others they are lost."""
        core = self._core
        slots = None if core.type.slotting is None else _slots(bodies.values(), core.type.slotting)
        grants = core.publish(ReadBlocks(blocks, slots), self._clock.monotonic_ms())
        if not grants:
            return
        self._bodies.update(bodies)
        self._traffic.granted(self.consumers.deliver(grants, GENERATION, len(core.consumers) == 1))
        self._bodies.clear()

    def lost(self, messages: int) -> None:
        """Count messages that were dropped before they came here."""
        self._core.drops.record(messages)

    # --- policies, stats --------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Whether connected consumers hold places that others could take meanwhile."""
        settings = self._core.settings
        is_limited = settings.max_consumers_per_subscription or settings.max_consumers_per_topic
        return bool(self.consumers and is_limited)

    def settings_changed(self) -> None:
        """Let the settings of now hold for what is published next."""
        self._core.settings_changed()

    def tick(self) -> None:
        """Sample rates, those of drops included; once a second."""
        self._traffic.sample()
        self._core.drops.sample(self._clock.monotonic_ms())

    def figures(self) -> Figures:
        """Return what the metrics have of it."""
        figures = traffic_figures(self._traffic, self._core, self.consumers)
        figures.counters[DROPPED_MESSAGES.name] = self._core.drops.messages
        return figures

    def stats(self) -> dict[str, Any]:
        """Describe the subscription with Pulsar's names; `msgDropRate` is the rate of `msgDropCounter`."""
        return {
            **self._traffic.describe(self._core, self.consumers.values()),
            **key_shared_stats(self._core),
            # There is no cursor to tell of.
            "msgBacklog": 0,
            "unackedMessages": 0,
            "blockedSubscriptionOnUnackedMsgs": False,
            "msgRateExpired": 0.0,
            "totalMsgExpired": 0,
            "lastExpireTimestamp": 0,
            "lastMarkDeleteAdvancedTimestamp": 0,
            "markDeletePosition": [-1, -1],
            "readPosition": [-1, -1],
            "individuallyDeletedRanges": 0,
            "individuallyDeletedEntries": 0,
            "subscriptionProperties": {},
            "problem": "",
            "stuckForMs": 0,
            "stuckReason": "",
            "isDurable": False,
            **self._core.drops.describe(),
        }


def _slots(bodies: Iterable[memoryview], slotting: Slotting) -> list[Slots]:
    """Find the slots of blocks' rows; a block that cannot be decoded counts as keyless."""
    blocks = SlotsOfBlocks(slotting)
    for body in bodies:
        try:
            blocks.add_block(body)
        except (PulsarException, UnknownCodec, ValueError):
            blocks.add_unreadable()
    return blocks.take()
