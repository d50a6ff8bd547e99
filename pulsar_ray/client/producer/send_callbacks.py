"""Completes the callbacks of sends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import PulsarException, Result
from pulsar_ray.lane.waiting import Completion
from pulsar_ray.model.message_id import MessageId

logger = logging.getLogger(__name__)

SendCallback = Callable[[Any, Any], None]
"""callback(Result, MessageId)."""
BlockDone = Callable[[int, int, PulsarException | None, int], None]
"""done(ledger id, first entry id, None, messages stored before) once durable.

Or done(-1, -1, error, 0). Messages that were stored before are the first ones of the
block: they are not in what was stored now.
"""
NO_ID = MessageId()
"""Of a message that failed, or that had been stored before: where is not known."""


class ErrorCallback:
    """A callback that takes the error itself and not only its result code."""

    __slots__ = ()

    def failed(self, error: PulsarException) -> None:
        raise NotImplementedError

    def __call__(self, result: Any, message_id: MessageId) -> None:
        raise NotImplementedError


class SyncSend(ErrorCallback, Completion):
    """The callback of a message whose sender waits."""

    error: PulsarException | None = None
    message_id: MessageId | None = None

    def __call__(self, result: Any, message_id: MessageId) -> None:
        self.message_id = message_id
        self.set()

    def failed(self, error: PulsarException) -> None:
        self.error = error
        self.set()


def complete_callback(callback: SendCallback, message_id: MessageId) -> None:
    """Call back a message alone in its block with its id.

    An error that the callback raises is logged.
    """
    try:
        callback(Result.Ok, message_id)
    except Exception:
        logger.exception("a send callback raised")


def fail_callbacks(callbacks: Sequence[SendCallback | None], error: PulsarException) -> None:
    """Call back each message with the error: not stored, or perhaps not."""
    for callback in callbacks:
        if callback is None:
            continue
        try:
            if isinstance(callback, ErrorCallback):
                callback.failed(error)
            else:
                callback(error.result, NO_ID)
        except Exception:
            logger.exception("a send callback raised")
