"""The figures of a partition's publishing that stats do not have: latencies, writes, refusals. Pure."""

from __future__ import annotations

from collections import Counter

from pulsar_ray.errors import (
    BrokerPersistenceError,
    DiskSpaceLow,
    MessageTooBig,
    NotAllowedError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
    TopicTerminated,
)
from pulsar_ray.model.metric_catalogue import COMMIT_BLOCKS, FSYNC_SECONDS, PUBLISH_LATENCY
from pulsar_ray.model.traffic import BucketCounts

# The first that fits counts: a low disk is a kind of failed write.
_REASONS = (
    (DiskSpaceLow, "disk_space"),
    (ProducerBlockedQuotaExceededError, "backlog_quota"),
    (ProducerBlockedQuotaExceededException, "backlog_quota"),
    (TopicTerminated, "terminated"),
    (MessageTooBig, "too_large"),
    (NotAllowedError, "delayed_too_long"),
    (BrokerPersistenceError, "not_stored"),
)
REFUSAL_REASONS = (*dict.fromkeys(reason for _, reason in _REASONS), "other")
"""The values that the label `reason` may have."""


def refusal_reason(error: PulsarException) -> str:
    """Return the label for the error with which blocks are refused."""
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")


class PublishFigures:
    """Counted once for each block or commit, absolute since the partition started."""

    def __init__(self) -> None:
        self.latency = BucketCounts(PUBLISH_LATENCY.buckets)
        self.write_seconds = BucketCounts(FSYNC_SECONDS.buckets)
        self.commit_blocks = BucketCounts(COMMIT_BLOCKS.buckets)
        self.refused: Counter[str] = Counter(dict.fromkeys(REFUSAL_REASONS, 0))

    def wrote(self, seconds: float, blocks: int) -> None:
        """A commit of so many blocks was durable after so long."""
        self.write_seconds.observe(seconds)
        self.commit_blocks.observe(blocks)

    def refuses(self, error: PulsarException) -> None:
        """A block is refused, or held back until its producer may go on."""
        self.refused[refusal_reason(error)] += 1
