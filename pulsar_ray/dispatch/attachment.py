"""How consumers come to a dispatcher and go."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from pulsar_ray.dispatch.grant import Grant


class ConsumerExit(Enum):
    """Tells a consumer that was closed from one that crashed."""

    CLOSED = "closed"
    CRASHED = "crashed"


class Attachment(NamedTuple):
    """`resumed`: numbers go on, and `again` is sent once more; otherwise they start at 1."""

    resumed: bool
    generation: int
    again: list[Grant]
