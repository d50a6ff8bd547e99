"""Checks and describes a consumer that opens, and holds it while it is connected."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pulsar_ray.broker.subscription.consumers.delivery_senders import DeliverySender
from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, ChunkLimits
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.dispatch.key_shared.hash_regions import key_shared_spec
from pulsar_ray.dispatch.settings import DispatchSettings
from pulsar_ray.errors import ConsumerBusy
from pulsar_ray.lane.progress_page import CounterView
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.registrations import kept_bytes
from pulsar_ray.session.requests import OpenConsumer, Reset, encode_request
from pulsar_ray.session.session_table import Session


class ConsumerEndpoint:
    """One attachment of a consumer; once it is open, deliveries and resets are sent.

    `numbering` is the id under which this consumer's deliveries are counted.
    """

    def __init__(
        self,
        subscription: str,
        session: Session,
        request: OpenConsumer,
        numbering: int,
        sender: DeliverySender,
    ) -> None:
        self.subscription = subscription
        self.session = session
        self.consumer_id = request.consumer_id
        self.incarnation = request.incarnation
        self.name = request.name
        self.metadata = request.properties or {}
        self.kept_bytes = kept_bytes(request.name + subscription, request.properties)
        self.reads_files = request.reads_files
        self.numbering = numbering
        self.redeliveries = request.redeliveries
        """How often it had asked for all it holds when it declared that."""
        self.dead_letters = (0, "")
        """How many messages it moved to dead letter topics, and why not more."""
        self.handed_over = None if request.handed_over is None else CounterView.open(request.handed_over)
        """The client's count of messages that left its queue, if it can be seen."""
        self.count_crashes = request.count_crashes
        self._attachment = session.attachment
        self._sender = sender
        self._is_open = False
        self._early: list[tuple[int, Sequence[Grant]]] = []
        self.deliver: Callable[[Sequence[Grant], int], None] = self._deliver_later
        """Sends grants of a generation behind all others.

        Until `open` they wait, for a client takes numbers in order only.
        """
        self._known_active: bool | None = None

    def open(self, again: Sequence[Grant], generation: int) -> None:
        """Send `again`, and then all grants since: the client knows that it is open."""
        early, self._early = self._early, []
        self._is_open = True
        self.deliver = self._sender.send
        self.deliver(again, generation)
        for of_generation, grants in early:
            self.deliver(grants, of_generation)

    def retire(self) -> None:
        """Send nothing more: the consumer attached again, and its new endpoint sends the rest."""
        self._sender.end()

    def _deliver_later(self, grants: Sequence[Grant], generation: int) -> None:
        self._early.append((generation, grants))

    @property
    def has_unsent(self) -> bool:
        """Whether deliveries were granted that are not on the carrier yet."""
        return self._sender.has_unsent or bool(self._early)

    @property
    def is_on_carrier(self) -> bool:
        """Whether this attachment is open and still the one that its session's carrier belongs to."""
        session = self.session
        return self._is_open and session.carrier is not None and session.attachment == self._attachment

    def drop_queue(self, drop: DropQueue) -> None:
        """Have the consumer drop its queue of lower generations; unsent deliveries of these go too."""
        self._sender.drop_below(drop.generation)
        self._early = [early for early in self._early if early[0] >= drop.generation]
        _, generation, last_number, granted, is_seek, start = drop
        self.session.send(
            encode_request(
                Reset(
                    self.consumer_id,
                    generation,
                    is_seek,
                    last_number,
                    granted,
                    start=None if start is None else list(start),
                )
            )
        )

    def notify_active(self, is_active: bool, generation: int) -> None:
        """Send whether the consumer is active, once it is open and unless it knows."""
        if self._is_open and is_active is not self._known_active:
            self._known_active = is_active
            self.session.send(encode_request(Reset(self.consumer_id, generation, is_active=is_active)))


EndpointFactory = Callable[[Session, OpenConsumer, int], ConsumerEndpoint]
"""Makes the endpoint of a consumer that opens, with the id of its numbering."""


def check_limit(settings: DispatchSettings, present: Collection[int], request: OpenConsumer) -> None:
    """Raise ConsumerBusy for a consumer that is new, and one too many; `present` are incarnations."""
    limit = settings.max_consumers_per_subscription
    if 0 < limit <= len(present) and not request.joined and request.incarnation not in present:
        raise ConsumerBusy(
            f"the subscription has {len(present)} consumers, and the policy max_consumers_per_subscription "
            f"allows {limit}: close one, or raise the policy"
        )


def spec_of(request: OpenConsumer, numbering: int) -> ConsumerSpec:
    """Describe a consumer; `numbering` is higher than any that subscribed before can name."""
    return ConsumerSpec(
        request.incarnation,
        request.name,
        ConsumerType(request.consumer_type),
        request.priority_level,
        request.batch_index_ack,
        request.joined if 0 < request.joined < numbering else numbering,
        request.is_multi_topic,
        key_shared_spec(request.key_shared),
        DEFAULT_LIMITS if request.chunk_limits is None else ChunkLimits(*request.chunk_limits),
    )
