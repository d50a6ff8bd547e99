"""Closes all partitions of a producer or consumer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Closing(Protocol):
    """A partition's side of a producer or consumer."""

    def close(self, deadline: float) -> None:
        """Send what is left to send, and close."""


def close_each(partitions: Iterable[Closing], deadline: float) -> Exception | None:
    """Close all of them, whatever happens to one; returns the first error."""
    first_error: Exception | None = None
    for partition in partitions:
        try:
            partition.close(deadline)
        except Exception as error:  # noqa: BLE001 - the others are to be closed all the same
            first_error = first_error or error
    return first_error
