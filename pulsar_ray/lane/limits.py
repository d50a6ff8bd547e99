"""Bounds and deadlines of lanes, at both ends."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_ray.session.packet import MAX_PACKET_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Deadlines in seconds and sizes in bytes; tests shorten them, the defaults are the product's."""

    connect_s: float = 1.0
    hello_s: float = 5.0
    """From the connection to a valid hello (server), from the hello to its answer (client)."""
    packet_s: float = 30.0
    """From a packet's first byte to its last, while the receiver reads."""
    write_s: float = 30.0
    """Without the peer taking a single byte of what waits for it."""
    close_s: float = 5.0
    """For flushing what was written before `close`."""
    peer_death_s: float = 0.1
    """Time in which the last bytes of an exiting process are read.

    Such a process closes its sockets a moment before its pidfd is readable.
    """
    hello_bytes: int = 256
    packet_bytes: int = MAX_PACKET_BYTES
    received_bytes: int = 64 * MIB
    """Of one server: received and neither answered nor dropped. Beyond it nothing more is read."""
    lane_received_bytes: int = 32 * MIB
    unsent_high_bytes: int = 4 * MIB
    """Stop reading a lane with more than this unsent.

    Reading goes on when the lane has drained to `unsent_low_bytes`.
    """
    unsent_low_bytes: int = MIB
    unsent_bytes: int = 64 * MIB
    """A lane with more than this waiting to be written is closed."""
