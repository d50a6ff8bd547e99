"""State of one consumer's acknowledgments on one partition."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pulsar_ray.client.acks.ack_timeouts import AckTimeouts
from pulsar_ray.client.acks.ack_tracker import AckTracker
from pulsar_ray.client.acks.ignored_acks import IgnoredAcks, IgnoredNacks
from pulsar_ray.client.acks.nack_tracker import NackTracker
from pulsar_ray.client.acks.unacked_rows import UnackedRows
from pulsar_ray.client.acks.unanswered_requests import UnansweredRequests
from pulsar_ray.client.options.consumer_options import ConsumerOptions

Acks: TypeAlias = "AckTracker | IgnoredAcks"
Nacks: TypeAlias = "NackTracker | IgnoredNacks"


class PartitionAcks(NamedTuple):
    """Acknowledgments by how far they have come; the consumer's lock guards all but `requests`."""

    acks: Acks
    """Gathered, not sent yet."""
    nacks: Nacks
    """Negative ones, not due yet."""
    unacked: UnackedRows
    """Delivered rows whose acknowledgment the dispatcher has not confirmed."""
    requests: UnansweredRequests
    """Sent or ready to be sent, not answered yet."""
    timeouts: AckTimeouts | None = None
    """Handed to the application, where there is an ack timeout."""

    @classmethod
    def stored(cls, options: ConsumerOptions, requests: UnansweredRequests) -> PartitionAcks:
        """Of a partition that stores its messages."""
        nacks = NackTracker(options.negative_ack_redelivery_delay_ms, options.negative_ack_redelivery_backoff)
        acks = AckTracker(batch_index_ack=options.batch_index_ack_enabled)
        timeouts = None
        if options.unacked_messages_timeout_ms:
            timeouts = AckTimeouts(
                options.unacked_messages_timeout_ms, options.ack_timeout_redelivery_backoff
            )
        return cls(acks, nacks, UnackedRows(), requests, timeouts)

    @classmethod
    def unstored(cls, requests: UnansweredRequests) -> PartitionAcks:
        """Of a partition of a non-persistent topic, where acknowledgments have no effect."""
        return cls(IgnoredAcks(), IgnoredNacks(), UnackedRows(), requests)

    def forget_failures(self) -> None:
        """Fail nothing any more: it comes again anyway, or the consumer leaves."""
        self.nacks.clear()
        if self.timeouts is not None:
            self.timeouts.clear()

    def forget(self) -> None:
        """Send nothing more of them. Called with the consumer's lock held, and `end_forgotten` soon after."""
        self.forget_failures()
        self.acks.clear()
        self.requests.forget()
