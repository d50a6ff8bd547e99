"""Lets messages that are sent without batching gather into one block."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlocks
from pulsar_ray.client.producer.queue.callback_queue import CallbackQueue
from pulsar_ray.lane.io_thread import Timers

IN_FLIGHT_UNBATCHED = 2
"""Without batching, messages gather into one block while so many blocks are under way."""


class Gathering:
    """Says when the messages that have gathered may become a block.

    They may not while callbacks run, which may send more, nor in the turn of a loop that sends more.
    With batching nothing gathers: count, bytes and time end a batch.
    """

    __slots__ = ("_callbacks", "_is_batching", "_is_in_turn", "_timers", "_unconfirmed", "_write")

    def __init__(
        self,
        timers: Timers,
        callbacks: CallbackQueue,
        unconfirmed: UnconfirmedBlocks,
        write: Callable[[], None],
        *,
        is_batching: bool,
    ) -> None:
        self._timers = timers
        self._callbacks = callbacks
        self._unconfirmed = unconfirmed
        self._write = write
        self._is_batching = is_batching
        self._is_in_turn = False

    def hold_turn(self) -> None:
        """Send together what is sent in this turn of the loop."""
        if not self._is_in_turn and not self._is_batching:
            self._is_in_turn = True
            self._timers.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_in_turn = False
        self._write()

    def is_expecting(self) -> bool:
        """Whether more is about to be sent, for which a message should wait."""
        return self._callbacks.is_running or self._is_in_turn

    def goes_on(self, *, has_finished: bool = False) -> bool:
        """Whether messages wait for more; a finished block waits for no receipts of others."""
        return (
            self._callbacks.is_running
            or self._is_in_turn
            or (self._unconfirmed.sent >= IN_FLIGHT_UNBATCHED and not has_finished)
        )

    def may_end(self) -> bool:
        """Whether the messages that have gathered may be written."""
        return not (self._is_batching or self.goes_on())
