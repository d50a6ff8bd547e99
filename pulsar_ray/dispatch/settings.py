"""What of the broker's settings a dispatcher heeds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DispatchSettings:
    """The settings a dispatcher heeds; 0 means no limit."""

    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    acknowledgment_at_batch_index_level_enabled: bool = False
    reattach_grace_ms: int = 5_000
    stuck_after_ms: int = 30_000
    """A subscription that could move and does not is warned of then; 0: never."""
    key_shared_replica_points: int = 0
    """Points of a consumer on the ring of Key_Shared; 0: no ring, hash ranges."""
    look_ahead_messages_per_consumer: int = 2_000
    """Key_Shared reads on past messages that cannot go anywhere now until so many wait."""
    look_ahead_messages_per_subscription: int = 20_000
    isolates_suspects: bool = True
    """After a crash what its consumer held comes back one at a time, so that poison is found."""
