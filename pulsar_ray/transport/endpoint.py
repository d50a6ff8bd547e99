"""The endpoints of a link: this process's producers, consumers and followers at one actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pulsar_ray.errors import PulsarException
from pulsar_ray.transport.cluster import AttachReply

FOLLOWER = 0
"""The endpoint id of a follower, which is alone on its link."""


class Endpoint(Protocol):
    """A producer, consumer or follower on a link.

    All methods are called on the I/O thread or the thread that reads.
    """

    @property
    def awaits_packets(self) -> bool:
        """Whether a packet may come for this endpoint before anything else is sent."""

    @property
    def needs_actor(self) -> bool:
        """Whether an actor asleep has to be woken for something that waits here.

        For something that comes later the endpoint calls the link's `wake`.
        """

    @property
    def awaited_consumer(self) -> tuple[int, bool] | None:
        """A consumer that its dispatcher waits for when it wakes.

        (incarnation, whether its end calls for an election); None of other endpoints.
        """

    def send_last(self) -> None:
        """Send what a close would send first: this process ends. It must not block."""

    def reopen(self, attached: AttachReply) -> None:
        """A new attachment stands: open again and resend what is pending."""

    def on_detached(self) -> None:
        """The carrier is gone: write nothing until `reopen`."""

    def on_refused(self, error: PulsarException) -> None:
        """The topic or subscription was deleted: the endpoint will never be open again."""

    def on_request(self, request: Any, body: memoryview) -> None:
        """A packet for this endpoint."""

    def on_receipts(self, rows: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Receipts for this endpoint's blocks (producers only)."""
