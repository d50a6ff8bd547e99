"""Stored blocks of one partition that this consumer cannot decode (ADR 0092)."""

from __future__ import annotations

import logging
import time

from pulsar_ray.client.acks.ack_sender import AckSender
from pulsar_ray.client.acks.ack_timeouts import TimedRows
from pulsar_ray.client.acks.ack_timer import AckTimer
from pulsar_ray.client.acks.partition_acks import PartitionAcks
from pulsar_ray.client.acks.unacked_rows import HeldBlock
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.received.block_decoder import BlockDecoder
from pulsar_ray.client.received.receiver_queue import QueuedDelivery
from pulsar_ray.errors import CryptoError, PulsarException
from pulsar_ray.model import row_sets
from pulsar_ray.model.enums import ConsumerCryptoFailureAction
from pulsar_ray.session.requests import Unreadable
from pulsar_ray.transport.cluster import PartitionRoute

logger = logging.getLogger(__name__)


class UnreadableBlocks:
    """Holds each as one message, whatever its header says.

    The dispatcher is told to count it as one. A reader passes it by. With a dead letter policy it has
    failed, for nobody may ever see the error.
    """

    def __init__(
        self,
        consumer_id: int,
        decoder: BlockDecoder,
        state: PartitionAcks,
        sender: AckSender,
        options: ConsumerOptions,
        route: PartitionRoute,
    ) -> None:
        self.topic = route.topic
        self.partition = route.partition
        self._consumer_id = consumer_id
        self._decoder = decoder
        self._state = state
        self._sender = sender
        self._is_passed = options.first_start is not None
        self._has_failed = options.max_failures is not None
        self._discards_encrypted = options.crypto_failure_action == ConsumerCryptoFailureAction.DISCARD
        self._has_logged = False
        self.ack_timer: AckTimer | None = None
        """Where there is an ack timeout."""

    def stored_bytes(self, delivery: QueuedDelivery) -> bytes:
        """The block as it is stored. Raises SegmentGone, CorruptData for one that is cut off."""
        return self._decoder.stored_bytes(delivery)

    def met(self, delivery: QueuedDelivery, error: PulsarException) -> bool:
        """Hold a block that the application is to learn of; False if it knows.

        A block that cannot be decrypted is held or acknowledged, as `crypto_failure_action` says. Called
        without the consumer's lock.
        """
        if not self.hold(delivery):
            return False
        held = self.at(delivery.ledger_id, delivery.first_entry_id)
        if held is None:
            return True
        is_encrypted = isinstance(error, CryptoError)
        if is_encrypted:
            self._log_encrypted(held, error)
        if self._is_passed or (is_encrypted and self._discards_encrypted):
            self.acknowledge(held)
            self._sender.added()
        elif self._has_failed and not is_encrypted:
            self.fail(held)
        elif self.ack_timer is not None:
            self.ack_timer.handed_over_rows(
                TimedRows(
                    held.ledger_id,
                    held.first_entry_id,
                    held.redelivery_count,
                    row_sets.of_ranges(held.rows),
                    held.messages,
                    held.is_batch,
                )
            )
        return True

    def _log_encrypted(self, held: HeldBlock, error: PulsarException) -> None:
        """Log the first of them; the others will hardly have another reason."""
        if self._has_logged:
            return
        self._has_logged = True
        then = "discarded" if self._discards_encrypted else "withheld"
        logger.error(
            "%s: the message at (%d, %d) is %s, and others like it will be: %s",
            self.topic,
            held.ledger_id,
            held.first_entry_id,
            then,
            error.text,
        )

    def hold(self, delivery: QueuedDelivery) -> bool:
        """Hold all of a block, and report it; False if it is held already."""
        key = delivery.ledger_id, delivery.first_entry_id
        with self._sender.lock:
            if not self._state.unacked.note_unreadable(*key, delivery.redelivery_count):
                return False
        self._report(*key, delivery.generation)
        return True

    def report_again(self, generation: int) -> None:
        """Report all that are held: the dispatcher may not know them."""
        with self._sender.lock:
            unreadable = self._state.unacked.unreadable()
        for key in unreadable:
            self._report(*key, generation)

    def _report(self, ledger_id: int, first_entry_id: int, generation: int) -> None:
        # Lost with its connection it is sent again when the consumer is open again.
        consumer_id, requests = self._consumer_id, self._state.requests
        if requests.is_open:
            requests.link.request_async(
                lambda rid: Unreadable(consumer_id, ledger_id, first_entry_id, rid, generation),
                lambda _value, _error: None,
            )

    def at(self, ledger_id: int, entry_id: int) -> HeldBlock | None:
        """The unreadable block that is held at an entry, if there is one."""
        with self._sender.lock:
            return self._state.unacked.unreadable_at(ledger_id, entry_id)

    def acknowledge(self, held: HeldBlock) -> None:
        """Acknowledge all of a block; `added` of the sender is to follow."""
        with self._sender.lock:
            self.add_ack(held)

    def add_ack(self, held: HeldBlock) -> None:
        """Do as `acknowledge`, with the consumer's lock held."""
        self._state.acks.add_range(held.ledger_id, held.first_entry_id, held.last_entry_id)

    def fail(self, held: HeldBlock) -> None:
        """Let all of a block come again after the redelivery delay."""
        nacks = self._state.nacks
        # The backoff is the user's, and never called under a lock.
        delay_ms = nacks.delay_ms(max(held.redelivery_count, 0)) if nacks.has_backoff else None
        with self._sender.lock:
            self.add_nack(held, time.monotonic_ns() // 1_000_000, delay_ms)
        self._sender.nacks_added()

    def add_nack(self, held: HeldBlock, failed_ms: int, delay_ms: int | None = None) -> None:
        """Note that all of a block failed, with the consumer's lock held."""
        place = held.ledger_id, held.first_entry_id, held.redelivery_count
        self._state.nacks.add(*place, failed_ms, held.rows if held.messages > 1 else (), delay_ms)
