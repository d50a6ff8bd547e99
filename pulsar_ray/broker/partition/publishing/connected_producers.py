"""The producers that are connected to a partition, by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from pulsar_ray.broker.partition.manifest_writer import ManifestWriter
from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.producer_endpoint import (
    Outcomes,
    ProducerEndpoint,
    Refused,
    SessionOutcomes,
    WaitingBlocks,
)
from pulsar_ray.broker.serving.policies_in_force import PoliciesInForce
from pulsar_ray.clock import Clock
from pulsar_ray.errors import (
    IncarnationForgotten,
    IncompatibleSchema,
    MessageTooBig,
    ProducerBusy,
    ProducerFenced,
    PulsarException,
)
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.producer_incarnations import ProducerIncarnations
from pulsar_ray.managed_ledger.log.producer_sequences import ProducerSequences
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.registrations import check_new_name, check_properties_size, check_sum, kept_bytes
from pulsar_ray.model.topic_name import TopicName, is_system_topic
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import (
    NO_BLOCK,
    NO_SCHEMA,
    OpenProducer,
    ProducerOpened,
    Receipt,
)
from pulsar_ray.session.session_table import Session

logger = logging.getLogger(__name__)


class ProducerLog(Protocol):
    """The log that producers' blocks are appended to: it remembers their incarnations."""

    epoch: int
    incarnations: ProducerIncarnations
    sequences: ProducerSequences


class ConnectedProducers:
    """Opens and closes producers on the owner loop.

    `waiting` has the blocks that are admitted and not written yet.
    """

    def __init__(
        self,
        log: ProducerLog,
        waiting: WaitingBlocks,
        policies: PartitionPolicies,
        clock: Clock,
        name_prefix: str,
    ) -> None:
        self._log = log
        self._waiting = waiting
        self._policies = policies
        self._clock = clock
        self._name_prefix = name_prefix
        self._made_up_names = 0
        self._receipts = PacketEncoder(Receipt)
        self.by_name: dict[str, ProducerEndpoint] = {}

    @property
    def admitted(self) -> int:
        """Rises with each block that a connected producer sends, whatever becomes of it."""
        return sum(producer.next_seq for producer in self.by_name.values())

    @property
    def hold_places(self) -> bool:
        """Whether a producer has what another one could take while the partition sleeps.

        That is a name that its user has chosen, or a place where their number is limited.
        """
        if not self.by_name:
            return False
        is_limited = self._policies.settings.max_producers_per_topic > 0
        return is_limited or any(producer.is_user_named for producer in self.by_name.values())

    def holder_beside(self, session: Session, name: str | None) -> Session | None:
        """Return the other session that holds a producer's name, if one does."""
        held = self.by_name.get(name) if name else None
        return None if held is None or held.session is session else held.session

    def open(
        self, session: Session, request: OpenProducer, outcomes: Outcomes | None = None
    ) -> ProducerOpened:
        """Open a producer, or open it again.

        The outcomes of its blocks go to `outcomes`; None: into packets of the session.

        Raises ProducerBusy while another session holds the name, or if there are as many producers as the
        topic may have; IncarnationForgotten for one that is not remembered; InvalidConfiguration or
        NotAllowedError for a name or properties that are not to be kept.
        """
        name = request.name or _name_given(session, request) or self._make_up_name()
        held = self.by_name.get(name)
        if held is not None and held.incarnation not in (request.incarnation, request.replaces_incarnation):
            raise ProducerBusy(
                f"a producer named {name!r} is already connected: close it, or choose another producer_name"
            )
        if held is None and not request.was_open:
            self._check_limit()
            self._check_schema(request)
        self._check_kept(request, name)
        self._make_room(name)
        same = held if held is not None and held.incarnation == request.incarnation else None
        now_ms = self._clock.now_ms()
        last_seq = self._open_incarnation(request, name, held, now_ms)
        queued = self._waiting.next_seqs(request.incarnation)
        in_flight = same.next_seq if same is not None else 0
        next_seq = max([last_seq + 1, request.first_pending_seq, in_flight, *queued])
        if same is not None:
            traffic, connected_ms = same.traffic, same.connected_ms
        else:
            traffic, connected_ms = IncomingTraffic(self._clock.monotonic_ms()), now_ms
        endpoint = ProducerEndpoint(
            session,
            outcomes or self._outcomes_of(session),
            request.producer_id,
            name,
            request.incarnation,
            next_seq,
            traffic,
            connected_ms,
        )
        endpoint.metadata = request.properties or {}
        endpoint.kept_bytes = kept_bytes(name, request.properties)
        endpoint.is_user_named = request.user_named
        endpoint.access_mode = ProducerAccessMode(request.access_mode)
        if same is not None:
            endpoint.message_in_chunks = same.message_in_chunks
        self.by_name[name] = endpoint
        session.endpoints[request.producer_id] = endpoint
        settings = self._policies.settings
        return ProducerOpened(
            request.request_id,
            name,
            last_seq,
            self._last_sequence_id(name),
            settings.max_message_size,
            self._log.epoch,
            settings.max_block_rows,
            settings.max_block_bytes,
            max_delivery_delay_ms=settings.delayed_delivery_max_delay_in_millis,
        )

    def _outcomes_of(self, session: Session) -> Outcomes:
        """Return one for all producers of a session, so that they share receipts."""
        for endpoint in session.endpoints.values():
            if isinstance(endpoint, ProducerEndpoint):
                return endpoint.outcomes
        return SessionOutcomes(session, self._receipts)

    def _make_room(self, name: str) -> None:
        """Forget another producer's sequence ids if deduplication remembers as many as it may."""
        limit = self._policies.settings.broker_deduplication_max_number_of_producers
        gone = self._log.sequences.make_room(name, limit, self.by_name)
        if gone is not None:
            logger.warning(
                "deduplication forgets the producer %r, which has been away longest: it remembers %d, the "
                "setting broker_deduplication_max_number_of_producers",
                gone,
                limit,
            )

    def _last_sequence_id(self, name: str) -> int:
        """Return the highest sequence id of a producer that is stored, or soon is.

        It is -1 without deduplication.
        """
        sequences = self._log.sequences
        return max(sequences.last_id(name), self._waiting.last_sequence_id(name)) if sequences.is_on else -1

    @property
    def limit(self) -> int:
        """How many producers the topic may have; 0: any number."""
        return self._policies.settings.max_producers_per_topic

    def _check_schema(self, request: OpenProducer) -> None:
        if self._policies.settings.is_schema_validation_enforced and request.schema_version == NO_SCHEMA:
            raise IncompatibleSchema(
                "Producers cannot connect or send message without a schema to topics with a schema when "
                "SchemaValidationEnforced is enabled: give create_producer a schema, or switch the "
                "policy schema_validation_enforced off for the topic"
            )

    def _check_limit(self) -> None:
        limit = self.limit
        if 0 < limit <= len(self.by_name):
            raise ProducerBusy(
                f"the topic has {len(self.by_name)} producers, and its policy max_producers allows {limit}: "
                "close one, or raise the policy (setting max_producers_per_topic)"
            )

    def check_registration(self, request: OpenProducer) -> None:
        """Refuse a name or properties above the limits, whoever else is there.

        A name that the log knows stays good. Raises InvalidConfiguration, NotAllowedError.
        """
        log, name = self._log, request.name or ""
        if log.incarnations.last_entry_seq(request.incarnation) < 0 and log.sequences.last_id(name) < 0:
            check_new_name("producer", name)
        check_properties_size("producer", request.properties, self._policies.settings.max_properties_bytes)

    def _check_kept(self, request: OpenProducer, name: str) -> None:
        self.check_registration(request)
        settings = self._policies.settings
        others = (known.kept_bytes for known in self.by_name.values() if known.name != name)
        new = kept_bytes(name, request.properties)
        check_sum("producers", new, others, settings.max_properties_bytes_per_actor)

    def _open_incarnation(
        self, request: OpenProducer, name: str, held: ProducerEndpoint | None, now_ms: int
    ) -> int:
        """Open an incarnation in place of the one before; returns its last stored entry_seq.

        Raises IncarnationForgotten for one that is not remembered any more, unless sequence ids tell
        which of its messages are stored: all that it sent may have been duplicates.
        """
        incarnations = self._log.incarnations
        if incarnations.is_retired(request.incarnation):
            raise IncarnationForgotten(
                f"producer incarnation {request.incarnation} was away for too long in the middle of a "
                "message in chunks: start a new one"
            )
        if request.replaces_incarnation:
            incarnations.retire(request.replaces_incarnation, now_ms)
        last_seq = incarnations.last_entry_seq(request.incarnation)
        is_known = incarnations.knows(request.incarnation) or self._log.sequences.last_id(name) >= 0
        if request.first_pending_seq > 0 and not is_known:
            raise IncarnationForgotten(
                f"producer incarnation {request.incarnation} is not remembered any more: start a new one"
            )
        if held is None or held.incarnation != request.incarnation:
            incarnations.open_session(request.incarnation, now_ms)
            if held is not None:
                incarnations.close_session(held.incarnation, now_ms)
        return last_seq

    def take_leave(self, sending: Mapping[int, int], idle_ms: int) -> list[int]:
        """Return those incarnations that store nothing more of a message in chunks.

        `sending` has the entry_seq of the last chunk of each that was read. A producer that has been away
        for so long is not let in again with its incarnation: the rest of its message would come to nothing.
        """
        incarnations, now_ms = self._log.incarnations, self._clock.now_ms()
        reached = {producer.incarnation: producer.next_seq for producer in self.by_name.values()}
        left = []
        for incarnation, entry_seq in sending.items():
            if self._waiting.next_seqs(incarnation) or incarnations.is_in_flight(incarnation):
                continue
            if incarnations.is_past(incarnation, entry_seq) or reached.get(incarnation, 0) > entry_seq + 1:
                left.append(incarnation)
            elif incarnations.is_away(incarnation, idle_ms, now_ms):
                incarnations.retire(incarnation, now_ms)
                left.append(incarnation)
        return left

    def evict(self, endpoint: ProducerEndpoint, error: ProducerFenced) -> None:
        """Free a producer's name against its will; its blocks that wait are not written."""
        for _, header, _, carrier, _ in self._waiting.take_out(endpoint.incarnation):
            if carrier is not None:
                carrier.release(header.total_length)
        del self.by_name[endpoint.name]
        endpoint.eviction = error
        tell_evicted(endpoint)

    def hold(self, endpoint: ProducerEndpoint, next_seq: int, error: PulsarException) -> None:
        """Store nothing more of a producer before it opens again.

        It is then to begin with the block of that entry_seq."""
        endpoint.is_held = True
        endpoint.next_seq, endpoint.rest_end_seq = next_seq, 0
        endpoint.outcomes.refused(Refused(endpoint.producer_id, NO_BLOCK, error, {"is_held": True}))

    def close(self, endpoint: ProducerEndpoint) -> None:
        """Free a producer's name; blocks already admitted are still written."""
        if self.by_name.get(endpoint.name) is endpoint:
            del self.by_name[endpoint.name]
        endpoint.session.endpoints.pop(endpoint.producer_id, None)
        self._log.incarnations.close_session(endpoint.incarnation, self._clock.now_ms())

    def _make_up_name(self) -> str:
        self._made_up_names += 1
        return f"{self._name_prefix}-{self._log.epoch}-{self._made_up_names}"

    def limits_changed(self) -> None:
        """Send all producers the limits of messages that hold from now on.

        One that misses it learns them when it opens again.
        """
        size, delay_ms = self._policies.message_limits
        for producer in self.by_name.values():
            error = MessageTooBig(f"the topic's policy max_message_size allows {size} bytes now")
            limits = {"max_message_size": size, "max_delivery_delay_ms": delay_ms}
            producer.outcomes.refused(Refused(producer.producer_id, NO_BLOCK, error, limits))

    def sample_rates(self) -> None:
        """Sample the rates of all producers; once a second."""
        now_ms = self._clock.monotonic_ms()
        for producer in self.by_name.values():
            producer.traffic.sample(now_ms)

    def current(self, producer: ProducerEndpoint) -> ProducerEndpoint | None:
        """Return the endpoint for a producer's answers; None if it gave its incarnation up."""
        current = self.by_name.get(producer.name, producer)
        return current if current.incarnation == producer.incarnation else None


def _name_given(session: Session, request: OpenProducer) -> str:
    """Return the name that a producer was given by a lost answer.

    It is "" if there was none. By another name the producer would be there twice, and once for good.
    """
    known = session.endpoints.get(request.producer_id)
    return (
        known.name if isinstance(known, ProducerEndpoint) and known.incarnation == request.incarnation else ""
    )


def tell_evicted(endpoint: ProducerEndpoint) -> None:
    """Tell an evicted producer, as often as it sends something."""
    assert endpoint.eviction is not None
    refusal = Refused(endpoint.producer_id, NO_BLOCK, endpoint.eviction, {"is_evicted": True})
    endpoint.outcomes.refused(refusal)


_LOOK_MS = 60_000


class DeduplicationSwitch:
    """Lets the log's own durable switch follow the policies; belongs to the owner loop.

    While the policies of today are not known, the log goes on as it did: an actor that Ray has restarted may
    have old ones. System topics are left alone: what the broker itself writes is numbered otherwise.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        writer: ManifestWriter,
        producers: ConnectedProducers,
        policies: PartitionPolicies,
        in_force: PoliciesInForce,
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._producers = producers
        self._policies = policies
        self._in_force = in_force
        self._is_system_topic = is_system_topic(TopicName.parse(ledger.identity.topic))
        self._looked_ms: int | None = None

    def begin(self) -> None:
        """Follow the policies before the first block: the change is durable before that block is."""
        self._writer.submit(self._change())

    async def follow(self) -> None:
        """Follow the policies; durable when this returns."""
        await self._writer.durable(self._change())

    def _change(self) -> Any:
        if not self._in_force.are_current:
            return None
        wanted = self._policies.settings.broker_deduplication_enabled and not self._is_system_topic
        return self._ledger.changes.switch_deduplication(on=wanted)

    def tick(self, now_ms: int) -> None:
        """Forget once a minute the producers that have been away too long."""
        if self._looked_ms is not None and 0 <= now_ms - self._looked_ms < _LOOK_MS:
            return
        self._looked_ms = now_ms
        self._writer.submit(self._change())
        timeout_ms = self._policies.deduplication_timeout_ms
        self._ledger.sequences.forget_idle(now_ms, timeout_ms, self._producers.by_name)
