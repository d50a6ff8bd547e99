"""Completes the callbacks of sends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.producer.blocks.sealed_batch import SealedBatch, SendCallback
from pulsar_ray.client.producer.blocks.unconfirmed_blocks import BlockDone
from pulsar_ray.errors import PulsarException, Result
from pulsar_ray.model.message_id import DUPLICATE_LEDGER, MessageId, entry_at

logger = logging.getLogger(__name__)

_NO_ID = MessageId()
"""Of a message that failed, or that had been stored before: where is not known."""


class ErrorCallback:
    """A callback that takes the error itself and not only its result code."""

    __slots__ = ()

    def failed(self, error: PulsarException) -> None:
        raise NotImplementedError

    def __call__(self, result: Any, message_id: MessageId) -> None:
        raise NotImplementedError


def complete_callbacks(
    batch: SealedBatch, partition: int, ledger_id: int, entry_id: int, stored_before: int
) -> None:
    """Call back each message of a stored batch with its id.

    The first `stored_before` messages had been stored before, and get an id that names nothing. Errors that a
    callback raises are logged.
    """
    ok, is_batch = Result.Ok, batch.is_batch
    if ledger_id == DUPLICATE_LEDGER:
        stored_before = batch.message_count
    size = batch.message_count - stored_before
    for row, callback in enumerate(batch.callbacks, -stored_before):
        if callback is None:
            continue
        try:
            if row < 0:
                callback(ok, _NO_ID)
            elif is_batch:
                callback(ok, MessageId(partition, ledger_id, entry_id, row, size))
            else:
                callback(ok, MessageId(partition, ledger_id, entry_at(entry_id, row)))
        except Exception:
            logger.exception("a send callback raised")


def completion_of(batch: SealedBatch, partition: int, stored: Callable[[int], None]) -> BlockDone:
    """Make the completion of a batch that was stored or failed.

    `stored(its last sequence id)` is called before its callbacks.
    """

    def complete(ledger_id: int, entry_id: int, error: PulsarException | None, stored_before: int) -> None:
        if error is not None:
            fail_callbacks(batch.callbacks, error)
            return
        stored(batch.last_sequence_id)
        complete_callbacks(batch, partition, ledger_id, entry_id, stored_before)

    return complete


def complete_callback(callback: SendCallback, message_id: MessageId) -> None:
    """Call back a message alone in its block with its id.

    An error that the callback raises is logged.
    """
    try:
        callback(Result.Ok, message_id)
    except Exception:
        logger.exception("a send callback raised")


def fail_callbacks(callbacks: list[SendCallback | None], error: PulsarException) -> None:
    """Call back each message with the error: not stored, or perhaps not."""
    for callback in callbacks:
        if callback is None:
            continue
        try:
            if isinstance(callback, ErrorCallback):
                callback.failed(error)
            else:
                callback(error.result, _NO_ID)
        except Exception:
            logger.exception("a send callback raised")
