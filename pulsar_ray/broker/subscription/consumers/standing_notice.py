"""When a consumer is told that what comes next for it cannot be read."""

from __future__ import annotations

from pulsar_ray.errors import PulsarException
from pulsar_ray.ledger.offloaded import AWAY, UNREAD
from pulsar_ray.session.requests import NotRead, encode_request
from pulsar_ray.session.session_table import Session

AWAY_S = 10.0
"""An object store that is away for less is only waited for."""
AGAIN_S = 30.0


class StandingNotice:
    """Tells one attachment of a consumer why nothing comes, not with every attempt (ADR 0148).

    Damage is told at once, an object store that is away after a while. The same is told again only much
    later: whoever waits then has called again.
    """

    def __init__(self, session: Session, consumer_id: int, numbering: int) -> None:
        self._session = session
        self._consumer_id = consumer_id
        self._numbering = numbering
        self._away_since_s: float | None = None
        self._told: tuple[str, float] | None = None

    def failed(self, error: BaseException | None, generation: int, now_s: float) -> None:
        """Tell that an offloaded segment could not be read, if that is due."""
        if not isinstance(error, UNREAD):
            return
        if isinstance(error, AWAY):
            if self._away_since_s is None:
                self._away_since_s = now_s
            if now_s - self._away_since_s < AWAY_S:
                return
        if self._told is not None and self._told[0] == error.text and now_s - self._told[1] < AGAIN_S:
            return
        self._told = error.text, now_s
        self._send(generation, error)

    def went_on(self, generation: int) -> None:
        """Take back what was told: reading goes on."""
        self._away_since_s = None
        if self._told is not None:
            self._told = None
            self._send(generation)

    def sought(self) -> None:
        """Tell again what was told: the consumer is elsewhere, or there again."""
        self._away_since_s = self._told = None

    def has_no_bytes(self, error: PulsarException, generation: int, number: int) -> None:
        """Tell why the delivery of this number, which is to follow, has no bytes."""
        self._send(generation, error, number)

    def _send(self, generation: int, error: PulsarException | None = None, number: int = 0) -> None:
        place = self._consumer_id, self._numbering, generation
        if error is None:
            self._session.send(encode_request(NotRead(*place)))
        else:
            told = type(error).__name__, error.text, error.details
            self._session.send(encode_request(NotRead(*place, *told, number)))
