"""The producers that are connected to a partition, by name."""

from __future__ import annotations

from typing import Protocol

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.producer_endpoint import ProducerEndpoint
from pulsar_ray.broker.partition.waiting_blocks import WaitingBlocks
from pulsar_ray.clock import Clock
from pulsar_ray.errors import ProducerBusy, ProducerFenced
from pulsar_ray.managed_ledger.log.producer_incarnations import ProducerIncarnations
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.requests import (
    NO_BLOCK,
    OpenProducer,
    ProducerOpened,
    PublishFailed,
    encode_request,
)
from pulsar_ray.session.session_table import Session


class ProducerLog(Protocol):
    """The log that producers' blocks are appended to: it remembers their incarnations."""

    epoch: int
    incarnations: ProducerIncarnations


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
        is_limited = self._policies.max_producers_per_topic > 0
        return is_limited or any(producer.is_user_named for producer in self.by_name.values())

    def holder_beside(self, session: Session, name: str | None) -> Session | None:
        """Return the other session that holds a producer's name, if one does."""
        held = self.by_name.get(name) if name else None
        return None if held is None or held.session is session else held.session

    def open(self, session: Session, request: OpenProducer) -> ProducerOpened:
        """Open a producer, or open it again.

        Raises ProducerBusy while another session holds the name, or if there are as many producers as the
        topic may have; ProducerFenced for a forgotten incarnation.
        """
        name = request.name or self._make_up_name()
        held = self.by_name.get(name)
        if held is not None and held.incarnation not in (request.incarnation, request.replaces_incarnation):
            raise ProducerBusy(
                f"a producer named {name!r} is already connected: close it, or choose another producer_name"
            )
        if held is None and not request.was_open:
            self._check_limit()
        same = held if held is not None and held.incarnation == request.incarnation else None
        now_ms = self._clock.now_ms()
        last_seq = self._open_incarnation(request, held, now_ms)
        queued = self._waiting.next_seqs(request.incarnation)
        in_flight = same.next_seq if same is not None else 0
        next_seq = max([last_seq + 1, request.first_pending_seq, in_flight, *queued])
        if same is not None:
            traffic, connected_ms = same.traffic, same.connected_ms
        else:
            traffic, connected_ms = IncomingTraffic(self._clock.monotonic_ms()), now_ms
        endpoint = ProducerEndpoint(
            session, request.producer_id, name, request.incarnation, next_seq, traffic, connected_ms
        )
        endpoint.metadata = request.properties or {}
        endpoint.is_user_named = request.user_named
        self.by_name[name] = endpoint
        session.endpoints[request.producer_id] = endpoint
        policies = self._policies
        return ProducerOpened(
            request.request_id,
            name,
            last_seq,
            -1,
            policies.max_message_size,
            self._log.epoch,
            policies.max_block_rows,
            policies.max_block_bytes,
        )

    def _check_limit(self) -> None:
        limit = self._policies.max_producers_per_topic
        if 0 < limit <= len(self.by_name):
            raise ProducerBusy(
                f"the topic has {len(self.by_name)} producers, and its policy max_producers allows {limit}: "
                "close one, or raise the policy (setting max_producers_per_topic)"
            )

    def _open_incarnation(self, request: OpenProducer, held: ProducerEndpoint | None, now_ms: int) -> int:
        """Open an incarnation in place of the one before; returns its last stored entry_seq.

        Raises ProducerFenced for an incarnation that is not remembered any more.
        """
        incarnations = self._log.incarnations
        if request.replaces_incarnation:
            incarnations.retire(request.replaces_incarnation)
        last_seq = incarnations.last_entry_seq(request.incarnation)
        if request.first_pending_seq > 0 and not incarnations.knows(request.incarnation):
            raise ProducerFenced(
                f"producer incarnation {request.incarnation} is not remembered any more: start a new one"
            )
        if held is None or held.incarnation != request.incarnation:
            incarnations.open_session(request.incarnation, now_ms)
            if held is not None:
                incarnations.close_session(held.incarnation, now_ms)
        return last_seq

    def close(self, endpoint: ProducerEndpoint) -> None:
        """Free a producer's name; blocks already admitted are still written."""
        if self.by_name.get(endpoint.name) is endpoint:
            del self.by_name[endpoint.name]
        endpoint.session.endpoints.pop(endpoint.producer_id, None)
        self._log.incarnations.close_session(endpoint.incarnation, self._clock.now_ms())

    def _make_up_name(self) -> str:
        self._made_up_names += 1
        return f"{self._name_prefix}-{self._log.epoch}-{self._made_up_names}"

    def message_size_changed(self) -> None:
        """Send all producers the size that holds from now on.

        One that misses it learns it when it opens again.
        """
        size = self._policies.max_message_size
        for producer in self.by_name.values():
            news = PublishFailed(
                producer.producer_id,
                NO_BLOCK,
                "MessageTooBig",
                f"the topic's policy max_message_size allows {size} bytes now",
                {"max_message_size": size},
            )
            producer.session.send(encode_request(news))

    def sample_rates(self) -> None:
        """Sample the rates of all producers; once a second."""
        now_ms = self._clock.monotonic_ms()
        for producer in self.by_name.values():
            producer.traffic.sample(now_ms)

    def current(self, producer: ProducerEndpoint) -> ProducerEndpoint | None:
        """Return the endpoint for a producer's answers; None if it gave its incarnation up."""
        current = self.by_name.get(producer.name, producer)
        return current if current.incarnation == producer.incarnation else None
