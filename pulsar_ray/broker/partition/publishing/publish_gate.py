"""The reasons for which a partition takes no blocks just now, each with its error."""

from __future__ import annotations

from enum import Enum

from pulsar_ray.errors import PulsarException


class ClosedBy(Enum):
    """A condition that keeps a partition from storing.

    Of several that hold, a producer gets the error of the first one here.
    """

    TERMINATED = "end of the topic"
    DISK_SPACE = "disk space"
    BACKLOG_QUOTA = "backlog quota"


class PublishGate:
    """Open while no reason holds. Belongs to the owner loop; reading `refusal` costs an attribute."""

    def __init__(self) -> None:
        self._refusals: dict[ClosedBy, PulsarException] = {}
        self.refusal: PulsarException | None = None
        """The error for blocks that come now; None while the gate is open."""

    def set(self, reason: ClosedBy, refusal: PulsarException | None) -> None:
        """Close the gate for a reason with an error, or drop the reason with None."""
        if refusal is None:
            self._refusals.pop(reason, None)
        else:
            self._refusals[reason] = refusal
        self.refusal = next((self._refusals[r] for r in ClosedBy if r in self._refusals), None)

    def is_closed_by(self, reason: ClosedBy) -> bool:
        """Return whether this reason holds."""
        return reason in self._refusals
