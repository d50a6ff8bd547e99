"""The operations that a history is made of, one class for each kind of record in a process's journal.

A `place` is [partition, ledger id, entry id, batch index]; payloads name their producer and number, and are
kept as a digest.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from tests.faults.journal import Id, Journal, Record


class DeclaredTopic(NamedTuple):
    """A topic of the run; `letters_of` is the topic whose dead letters it takes, else None."""

    topic: str
    letters_of: str | None


class DeclaredSubscription(NamedTuple):
    """A subscription made before anything was sent.

    `ordering` is "partition" or "key" where consumers are given messages in order, else "none".
    """

    topic: str
    subscription: str
    ordering: str


class SendInvoked(NamedTuple):
    """A send that began; a successor of the same name may send the same number again.

    `due_ms` is the wall clock's time before which nobody may be given the message, 0 for none. A message
    that `fails` always is failed by every consumer that moves failures to dead letters.
    """

    topic: str
    producer: str
    number: int
    key: str
    digest: int
    due_ms: int
    fails: bool


class SendOk(NamedTuple):
    """A receipt; without a place if the message was recognised as stored before, or came with others."""

    topic: str
    producer: str
    number: int
    place: Id | None


class SendFailed(NamedTuple):
    """A send that was refused before anything was stored."""

    topic: str
    producer: str
    number: int
    error: str


class SendUnknown(NamedTuple):
    """A send without a receipt: the message may be stored, or not."""

    topic: str
    producer: str
    number: int
    error: str


class Received(NamedTuple):
    """A message that an application was given."""

    topic: str
    subscription: str
    place: Id
    producer: str
    number: int
    key: str
    digest: int
    wall_ms: int


class AcknowledgeOk(NamedTuple):
    """An acknowledgment with its receipt; a batch comes again whole until all its messages have one."""

    topic: str
    subscription: str
    place: Id
    batch_size: int


class CumulativeOk(NamedTuple):
    """The receipt of an acknowledgment of everything up to a place."""

    topic: str
    subscription: str
    place: Id
    batch_size: int


class MarkDeleted(NamedTuple):
    """A mark-delete position that the broker told, and the machine's clock before it was asked."""

    topic: str
    subscription: str
    partition: int
    ledger: int
    entry: int
    asked_at_ns: int


class Stored(NamedTuple):
    """A message of the log, as a reader found it behind all faults, in the order of the log."""

    topic: str
    place: Id
    producer: str
    number: int
    key: str
    digest: int


class Remains(NamedTuple):
    """A message that a subscription still gave when all its consumers had left."""

    topic: str
    subscription: str
    place: Id


Operation = (
    DeclaredTopic
    | DeclaredSubscription
    | SendInvoked
    | SendOk
    | SendFailed
    | SendUnknown
    | Received
    | AcknowledgeOk
    | CumulativeOk
    | MarkDeleted
    | Stored
    | Remains
)
KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        DeclaredTopic,
        DeclaredSubscription,
        SendInvoked,
        SendOk,
        SendFailed,
        SendUnknown,
        Received,
        AcknowledgeOk,
        CumulativeOk,
        MarkDeleted,
        Stored,
        Remains,
    )
}


def note(journal: Journal, operation: Operation) -> None:
    """Write an operation down; once this returns, only the loss of the disk loses it."""
    journal.write(type(operation).__name__, *operation)


def operation_of(record: Record) -> Operation | None:
    """The operation of a record; None for what a process notes besides."""
    kind = KINDS.get(record.kind)
    operation: Operation | None = None if kind is None else kind(*record.values)
    return operation


def payload(producer: str, number: int, size: int) -> bytes:
    """The bytes of a message, the same whenever it is sent again."""
    head = f"{producer} {number} ".encode()
    return head + (head * (size // len(head) + 1))[:size]


def source_of(data: bytes) -> tuple[str, int]:
    """The producer and the number that a payload names. Raises ValueError for bytes of another origin."""
    producer, number, _ = data[:80].decode(errors="replace").split(" ", 2)
    return producer, int(number)


def digest_of(data: bytes) -> int:
    return zlib.crc32(data)
