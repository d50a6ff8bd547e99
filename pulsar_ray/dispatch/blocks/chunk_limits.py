"""How long a subscription keeps chunks of messages that are not complete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

LOOK_BACK_SEGMENTS = 64
"""Segments that are searched for the beginning of a message, 128 MiB each."""


class ChunkLimits(NamedTuple):
    """One consumer's limits, or those that hold for all consumers of a subscription."""

    max_pending: int = 10
    """Incomplete messages, beyond which `acks_oldest` counts; 0 for any number."""
    acks_oldest: bool = False
    """Whether the one that began first is acknowledged, and never delivered, when there are more."""
    expire_ms: int = 60_000
    """A message whose producer is gone is kept so long; 0 for ever."""


DEFAULT_LIMITS = ChunkLimits()


def mildest(limits: Iterable[ChunkLimits]) -> ChunkLimits:
    """The limits that drop nothing which any of the consumers wants to be kept."""
    known = list(limits)
    if len(known) <= 1:
        return known[0] if known else DEFAULT_LIMITS
    pending = [one.max_pending for one in known]
    expiry = [one.expire_ms for one in known]
    return ChunkLimits(
        0 if 0 in pending else max(pending),
        all(one.acks_oldest for one in known),
        0 if 0 in expiry else max(expiry),
    )
