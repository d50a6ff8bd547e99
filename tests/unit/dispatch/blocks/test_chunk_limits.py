"""Which limits hold for the incomplete messages of a subscription."""

from __future__ import annotations

from pulsar_ray.dispatch.blocks.chunk_limits import DEFAULT_LIMITS, ChunkLimits, mildest


def test_nothing_is_dropped_that_any_consumer_wants_kept() -> None:
    assert mildest([]) == DEFAULT_LIMITS
    assert mildest([ChunkLimits(3, True, 5)]) == ChunkLimits(3, True, 5)
    assert mildest([ChunkLimits(3, True, 5), ChunkLimits(7, True, 2)]) == ChunkLimits(7, True, 5)
    assert mildest([ChunkLimits(0, True, 5), ChunkLimits(7, False, 0)]) == ChunkLimits(0, False, 0)
