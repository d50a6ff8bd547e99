"""The operations that a history is made of, one class for each kind of record in a process's journal.

A `place` is [partition, ledger id, entry id, batch index]; payloads name their producer and number, and are
kept as a digest.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

from tests.faults.journal import Id, Journal, Record


class DeclaredTopic(NamedTuple):
    """A topic of the run; `letters_of` is the topic whose dead letters it takes, else None.

    Its messages expire after `ttl_ms`, 0 for never. One that `keeps` nothing is non-persistent.
    """

    topic: str
    letters_of: str | None
    ttl_ms: int = 0
    keeps: bool = True


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


class ConsumerOpening(NamedTuple):
    """A consumer that begins to subscribe: nothing was delivered to its process before."""

    topic: str
    subscription: str


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
    redeliveries: int = 0


class Heard(NamedTuple):
    """A message of a non-persistent topic that an application was given."""

    topic: str
    subscription: str
    producer: str
    number: int
    digest: int


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


class SeekInvoked(NamedTuple):
    """A seek that began, to a place or for None to the first message.

    Unless it has a receipt, it may take effect at any later time, or never.
    """

    topic: str
    subscription: str
    seek: int
    place: Id | None


class SeekOk(NamedTuple):
    """The receipt of a seek: all that is stored at and behind the place comes again, all for None."""

    topic: str
    subscription: str
    seek: int
    place: Id | None


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
    published_ms: int = 0


class Remains(NamedTuple):
    """A message that a subscription still gave when all its consumers had left."""

    topic: str
    subscription: str
    place: Id


class ReadBegan(NamedTuple):
    """A read of a topic from its first message on, by a reader or in bulk, which acknowledges nothing."""

    topic: str
    reader: str


class ReadEnded(NamedTuple):
    """A read that ended by itself, with everything that was confirmed before it began."""

    topic: str
    reader: str


class ReadRow(NamedTuple):
    """A message that a read gave."""

    topic: str
    reader: str
    place: Id
    producer: str
    number: int
    digest: int


class ProducerOpened(NamedTuple):
    """A producer that has its topic for itself since then: those of lower turns were fenced."""

    topic: str
    producer: str
    turn: int


class ChangeInvoked(NamedTuple):
    """A change of the catalog that began: `value` of a subject, which one administrator alone changes."""

    subject: str
    value: int


class ChangeOk(NamedTuple):
    """The receipt of a change of the catalog."""

    subject: str
    value: int


class ValueFound(NamedTuple):
    """The value of a subject behind all faults; 0 if there is none."""

    subject: str
    value: int


class ClockShown(NamedTuple):
    """The latest time that the broker's clocks have ever shown."""

    highest_ms: int


class FaultDone(NamedTuple):
    """A fault that was injected."""

    kind: str
    target: str


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
    | Heard
    | SeekInvoked
    | SeekOk
    | ReadBegan
    | ReadEnded
    | ReadRow
    | ProducerOpened
    | ChangeInvoked
    | ChangeOk
    | ValueFound
    | ClockShown
    | FaultDone
    | ConsumerOpening
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
        Heard,
        SeekInvoked,
        SeekOk,
        ReadBegan,
        ReadEnded,
        ReadRow,
        ProducerOpened,
        ChangeInvoked,
        ChangeOk,
        ValueFound,
        ClockShown,
        FaultDone,
        ConsumerOpening,
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
