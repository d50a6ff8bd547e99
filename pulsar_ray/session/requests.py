"""Every request and reply of the session protocol, in one table.

A packet's fields are the tuple's values in this order (msgpack); entry bytes follow as the packet's body.
Each class states its sender and what makes it harmless when it comes twice or late. Types 1 to 3 open a lane
and are the carrier's own (`session/packet.py`). Appending a field with a default keeps older peers working,
and so does a packet that its receiver may lose: one that does not know it attaches again. Anything else
raises PROTOCOL_VERSION.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

from pulsar_ray.errors import ProtocolError
from pulsar_ray.model.row_sets import WireRows
from pulsar_ray.session.field_checks import (
    NUMBER_END,
    AccessModeNumber,
    Arguments,
    BatchRowsList,
    Check,
    ChunkLimitFields,
    ConsumerTypeNumber,
    CounterPlace,
    CumulativePlace,
    CursorStart,
    EntryRanges,
    FailedEntries,
    Flag,
    Incarnation,
    KeySharedFields,
    MessagePlace,
    Number,
    NumberOrNone,
    PositionOrNone,
    PropertiesOrNone,
    ScatteredEntries,
    Text,
    TextOrNone,
)
from pulsar_ray.session.packet import Packet, encode_packet

PROTOCOL_VERSION = 1
NO_BLOCK = -1
"""The entry_seq of a PublishFailed that refuses nothing."""
NO_EPOCH = -1
"""The topic epoch of a producer that shares its topic."""
NO_SCHEMA = -1
"""The schema version in a reply where the topic has no schema."""

Grant = tuple[int, int, int, int, int, int, WireRows, int, int]
WireFailures = Sequence[tuple[int, int, int]]
"""(first row, end row, failures) of a batch, without rows that never failed."""


class OpenProducer(NamedTuple):
    """Client to partition.

    Repeating it re-opens the same producer: incarnation and first pending entry_seq decide.
    """

    request_id: Number
    producer_id: Number
    name: TextOrNone
    incarnation: Incarnation
    replaces_incarnation: Incarnation
    first_pending_seq: Number
    access_mode: AccessModeNumber
    user_named: Flag
    properties: PropertiesOrNone = None
    was_open: Flag = False
    """It was open before: a limit that was reached meanwhile does not keep it out."""
    topic_epoch: Number = NO_EPOCH
    """The epoch in which it had the topic for itself.

    It is evicted if the topic has a higher one.
    """
    schema_version: Number = NO_SCHEMA
    """The registered version of the topic's schema that its messages are of."""


class ProducerOpened(NamedTuple):
    """Partition to client: what the log holds of this producer."""

    request_id: int
    name: str
    last_entry_seq: int
    last_sequence_id: int
    max_message_size: int
    epoch: int
    max_block_rows: int = 8192
    max_block_bytes: int = 1024 * 1024
    schema_version: int = NO_SCHEMA
    """The version of the topic's schema that the producer's messages are of."""
    topic_epoch: int = NO_EPOCH
    """The topic's epoch, if the producer has the topic for itself."""
    max_delivery_delay_ms: int = 0
    """Messages to be delivered later than that are refused; 0: none is."""


class CloseEndpoint(NamedTuple):
    """Client to actor: the producer or consumer with this id is gone for good."""

    request_id: int
    endpoint_id: int


class Done(NamedTuple):
    """Actor to client: the request was carried out, durably where it promises durability."""

    request_id: int
    value: Any = None


class Failed(NamedTuple):
    """Actor to client: the request was refused and changed nothing."""

    request_id: int
    error: str
    text: str
    details: dict[str, Any] | None = None


class Publish(NamedTuple):
    """Client to partition; the body is the blocks, one after the other.

    entry_seq in each block makes repeats harmless.
    """

    producer_id: int
    is_awaited: bool = False
    """A thread stands still until the receipt, which is therefore sent before followers are notified."""


class Receipt(NamedTuple):
    """Partition to client: durable blocks as (producer id, entry_seq, entries, ledger id, first entry id).

    The ledger id is -2 for a block that was left out, as its messages had been stored before.
    """

    blocks: Sequence[tuple[int, int, int, int, int]]


class PublishFailed(NamedTuple):
    """Partition to client: the block with this entry_seq was refused and is not stored.

    Later blocks go on. With NO_BLOCK none was refused: `details` have the `max_message_size` and the
    `max_delivery_delay_ms` that hold from now on. With a `stored_sequence_id` in `details` the messages up to
    this id had been stored before: the block with the others is to come next, then all later ones again. The
    entries that are left out of it are its first ones. Until it comes nothing else of the producer is stored;
    a repeat asks for the same. With `is_evicted` in `details` the producer was evicted for good, and nothing
    more of it is stored; with `is_held` nothing before it opens again, which is answered once there is room
    for it, and then all that has no receipt is to come again.
    """

    producer_id: int
    entry_seq: int
    error: str
    text: str
    details: dict[str, Any] | None = None


class Follow(NamedTuple):
    """Dispatcher to partition: notify me when the log moves (armed), and send its end now.

    Level-triggered: repeats are harmless.
    """

    subscription_number: int
    epoch: int
    armed: bool
    taken_bytes: int = 0
    """Of a non-persistent topic: the highest `sent_bytes` that arrived, of this epoch of the partition."""
    subscription: str = ""
    """Of a non-persistent topic, which has no registry: the durable subscription this follower serves."""


class Pushed(NamedTuple):
    """Partition of a non-persistent topic to follower: blocks that were published just now.

    The body is the blocks.

    `sent_bytes` counts all block bytes sent to this follower in this epoch, these included: a packet that
    does not raise it is a repeat. `dropped_messages` is how many it did not get so far. `blocks` are (length,
    entries, messages).
    """

    epoch: int
    sent_bytes: int
    dropped_messages: int
    blocks: Sequence[tuple[int, int, int]]


class Advanced(NamedTuple):
    """Partition to follower: the log is durable up to here.

    `tail` is the newest segment with its durable end, given when no frames show it. `frames` are (ledger id,
    segment index, offset, frame header) of what became durable behind the entry (before_ledger_id,
    before_entry_id), so that a follower sees whether it missed any. `segments` is given when their list
    changed: (ledger id, segment index, path, first entry id, end offset, last entry id). A lost or repeated
    packet harms nothing: the position is absolute and frame headers can be read from the file.
    """

    epoch: int
    ledger_id: int
    entry_id: int
    first_ledger_id: int
    first_entry_id: int
    segments: Sequence[tuple[int, int, str, int, int, int]] | None
    tail: tuple[int, int, str, int, int, int] | None
    before_ledger_id: int
    before_entry_id: int
    frames: Sequence[tuple[int, int, int, bytes]]
    compacted: Sequence[Any] | None = None
    """The fields of the manifest's record `Compacted`, none if nothing was compacted.

    Given with the segments.
    """


class MoveHold(NamedTuple):
    """Dispatcher to partition: this durable mark-delete position is reached.

    The subscription needs nothing below it any more. Of readers of a compacted topic, which have no cursor
    that lasts: they need what is behind it while they follow.
    """

    subscription_number: Number
    ledger_id: Number
    entry_id: Number


class Expired(NamedTuple):
    """Partition to follower: the broker has acknowledged for the subscription up to here.

    Sent when that moves, and to a follower that is new. The position is absolute and durable, so a lost or
    repeated packet harms nothing; one that crosses a seek is made good by asking behind that.
    """

    ledger_id: int
    entry_id: int


class OpenConsumer(NamedTuple):
    """Client to dispatcher.

    A repeat with the same incarnation is a re-attach: `held` lists the rows that the consumer still has.

    `numbering` and `received` name the last delivery that arrived; `credit` is the absolute number of
    messages the dispatcher may have granted in all since the consumer's incarnation began.
    `received_messages` is where the consumer's count stands that credit refers to. `start` is where a
    non-durable cursor begins (the arguments of a seek); durable ones begin where their subscription is.
    `joined` is the numbering in the first answer this consumer ever got, and shows again when it subscribed.
    `is_multi_topic`: it belongs to a consumer of several topics.
    """

    request_id: Number
    consumer_id: Number
    name: Text
    incarnation: Incarnation
    consumer_type: ConsumerTypeNumber
    priority_level: Number
    batch_index_ack: Flag
    reads_files: Flag
    numbering: Number
    received: Number
    held: BatchRowsList
    start: CursorStart
    subscription: Text
    received_messages: Number
    joined: Number = 0
    is_multi_topic: Flag = False
    key_shared: KeySharedFields = None
    """Of a Key_Shared consumer: mode, whether out of order delivery is allowed, declared inclusive ranges."""
    credit: Number = 0
    """Credit of a non-persistent topic's consumer, there with the consumer itself.

    Such a topic drops messages that find no credit.
    """
    generation: NumberOrNone = None
    """The generation of `held`: nothing from before a seek is held any more."""
    properties: PropertiesOrNone = None
    handed_over: CounterPlace = None
    """Where the client counts messages that have left the consumer's queue (`lane/progress_page.py`)."""
    chunk_limits: ChunkLimitFields = None
    """Of incomplete messages: how many, whether the oldest is acknowledged beyond, ms to keep one."""
    redeliveries: Number = 0
    """How often it has asked for everything that it holds.

    Of what it held before it did, `held` has nothing.
    """
    parts: BatchRowsList = ()
    """Rows that it still has of batches others may have the rest of.

    All that it does not have of a batch in `held` is acknowledged.
    """
    count_crashes: Flag = True
    """Whether messages fail by a crash of this consumer."""
    is_read_compacted: Flag = False
    """Whether it reads what compaction has kept, in place of all that was stored before."""


class ConsumerOpened(NamedTuple):
    """Dispatcher to client.

    `numbering` is the id of the numbers of its deliveries. `resumed`: these go on after `received`, otherwise
    they start anew at 1. `start` is the mark-delete position of a non-durable cursor.
    """

    request_id: int
    name: str
    numbering: int
    resumed: bool
    generation: int
    start: list[int] | None = None
    schema_version: int = NO_SCHEMA
    """The version of the topic's schema that the consumer reads with."""
    sees_handed_over: bool = False
    """Whether the dispatcher can see the count of messages handed over; else suspects are reported."""


class Credit(NamedTuple):
    """Tells a dispatcher how far a consumer is, in messages since its incarnation began."""

    consumer_id: int
    credit: int
    """Up to so many may be granted in all."""
    received: int
    """The number of the last delivery that arrived."""
    handed_over: int
    """So many have left the queue."""


class Deliver(NamedTuple):
    """Dispatcher to client.

    A lower numbering, generation or a number seen before is dropped.

    Each grant is (number, (ledger id, segment index, offset, length, first entry id, entries, rows as
    `row_sets` writes them,
    redelivery count, messages of the whole block)). For consumers that cannot read the files the body holds
    the granted blocks' bytes in order. `row_failures` are the failures of single messages, by the number of
    the grant of their batch, where there were any. `suspects` are numbers of grants, of messages one of
    which may have ended a consumer (ADR 0033).
    """

    consumer_id: int
    numbering: int
    generation: int
    grants: Sequence[tuple[int, Grant]]
    row_failures: Sequence[tuple[int, WireFailures]] = ()
    suspects: Sequence[int] = ()


class DeliverChunks(NamedTuple):
    """Dispatcher to client: chunks of the message whose last chunk is delivery `number`, which follows.

    `first_chunk_id` is that of the first one. A repeat begins again with 0, and the deliveries to
    which chunks that came before belong are dropped with these. Each place is (ledger id, segment index,
    offset, length, entry id); for consumers that cannot read the files the body holds the blocks in order.
    """

    consumer_id: int
    numbering: int
    generation: int
    number: int
    first_chunk_id: int
    places: Sequence[tuple[int, int, int, int, int]]


class NotRead(NamedTuple):
    """Dispatcher to client: why nothing comes.

    Or, with a `number`, why that delivery has no bytes. Without an `error` the dispatcher reads again. A
    lost one is told again while it holds; one of a former numbering or generation changes nothing, and one
    that is repeated takes the place of the first.
    """

    consumer_id: int
    numbering: int
    generation: int
    error: str = ""
    text: str = ""
    details: dict[str, Any] | None = None
    number: int = 0


class Acknowledge(NamedTuple):
    """Client to dispatcher; answered once durable, which is hurried with `at_once`. A repeat changes nothing.

    `cumulative` is (ledger id, entry id, row | -1); `entry_bits` are scattered entries (`entry_sets`).
    """

    request_id: Number
    consumer_id: Number
    ranges: EntryRanges
    batch_rows: BatchRowsList
    cumulative: CumulativePlace
    at_once: Flag = True
    generation: NumberOrNone = None
    """The generation they were acknowledged in; those from before a seek are ignored."""
    entry_bits: ScatteredEntries = ()
    moved_rows: BatchRowsList = ()
    """More rows of batches, which never come again: copies of them are dead letters."""


class NegativeAcknowledge(NamedTuple):
    """Client to dispatcher: redeliver now.

    Each item is (ledger id, entry id, row ranges, redelivery count it refers to).

    A repeat refers to a count that has passed, and changes nothing. `received` is the number of the last
    delivery that has arrived, and `oldest` the (ledger id, first entry id, row) of the first message that
    waits in the consumer's queue, if any does: where order is kept that queue goes, so they come again too.
    `first_sent` is (numbering, number of the last delivery) when the request was first sent: a count below 0,
    which no repeat makes pass, refers to nothing that was delivered later.
    """

    consumer_id: Number
    items: FailedEntries
    request_id: Number = 0
    received: Number = -1
    oldest: MessagePlace = None
    first_sent: PositionOrNone = None


class RedeliverUnacknowledged(NamedTuple):
    """Client to dispatcher: everything this consumer holds is to come again.

    Its own queue is dropped up to `received`, a number of this numbering. `generation` is the consumer's when
    it asked first: where order is kept, a repeat finds a higher one and nothing left up to `received`.
    `handed_over` is its count of messages that the application had got, which failed; `redeliveries` says how
    often it had asked, this time included.
    """

    consumer_id: int
    numbering: int
    received: int
    request_id: int = 0
    generation: int = -1
    handed_over: int = -1
    redeliveries: int = 1


class Unreadable(NamedTuple):
    """Client to dispatcher: the block that this consumer holds at this place cannot be decoded.

    From now on it counts for one unacknowledged message, however many it claims to have, and the consumer
    holds the rest of it as well (ADR 0092). A repeat changes nothing, nor does one of a `generation` from
    before a seek, or of a block that the consumer does not hold any more.
    """

    consumer_id: int
    ledger_id: int
    first_entry_id: int
    request_id: int
    generation: int


class Reset(NamedTuple):
    """Dispatcher to client: drop what is queued below this generation.

    After a seek, or a rewind of an ordered subscription.

    After a seek, also acknowledgments and negative ones that are not answered yet: they refer to messages
    that come again. All deliveries up to `last_number`, `granted` messages in all, are done with: those that
    did not arrive will not. On a Failover subscription `is_active` is whether this consumer is the active one
    from this generation on; one that is not drops its queue. A late one, of a lower generation, changes
    nothing. After a seek `start` is the mark-delete position of a non-durable cursor.
    """

    consumer_id: int
    generation: int
    is_seek: bool = False
    last_number: int = 0
    granted: int = -1
    is_active: bool | None = None
    start: list[int] | None = None


class Call(NamedTuple):
    """Either way: a named control request with keyword arguments, answered by Done or Failed."""

    request_id: Number
    endpoint_id: Number
    method: Text
    arguments: Arguments


class Ping(NamedTuple):
    """Client to actor, every few seconds.

    It renews the lease and proves that the owner loop turns.
    """

    number: int


class Pong(NamedTuple):
    """Actor to client."""

    number: int


class Leave(NamedTuple):
    """Client to actor: the client's process ends in order, and its session with it.

    Messages in hand go to others as behind a close, uncounted. A session without this word ends in a crash.
    """

    reason: Text


class MovedNotice(NamedTuple):
    """Actor to client: the actor has gone; resolve and attach again.

    `is_asleep`: with all its state on disk, because nobody used it; it is started again once it is resolved.
    Harmless when it is lost: the carrier is closed behind it.
    """

    reason: str
    is_asleep: bool = False


Request = (
    OpenProducer
    | ProducerOpened
    | CloseEndpoint
    | Done
    | Failed
    | Publish
    | Receipt
    | PublishFailed
    | Follow
    | Advanced
    | MoveHold
    | Expired
    | Pushed
    | OpenConsumer
    | ConsumerOpened
    | Credit
    | Deliver
    | DeliverChunks
    | NotRead
    | Acknowledge
    | NegativeAcknowledge
    | RedeliverUnacknowledged
    | Unreadable
    | Reset
    | Call
    | Ping
    | Pong
    | Leave
    | MovedNotice
)

PACKET_TYPES: dict[int, type[Any]] = {
    10: OpenProducer,
    11: ProducerOpened,
    12: CloseEndpoint,
    13: Done,
    14: Failed,
    20: Publish,
    21: Receipt,
    22: PublishFailed,
    30: Follow,
    31: Advanced,
    32: MoveHold,
    33: Pushed,
    34: Expired,
    40: OpenConsumer,
    41: ConsumerOpened,
    42: Credit,
    43: Deliver,
    44: Acknowledge,
    45: NegativeAcknowledge,
    46: RedeliverUnacknowledged,
    47: Reset,
    48: DeliverChunks,
    49: Unreadable,
    50: Call,
    51: Ping,
    52: Pong,
    53: MovedNotice,
    54: Leave,
    55: NotRead,
}
TYPE_OF = {cls: number for number, cls in PACKET_TYPES.items()}


def encode_request(request: Request, body: Sequence[Any] = ()) -> list[Any]:
    """The packet's buffers, ready to be written; `body` buffers follow verbatim."""
    return encode_packet(TYPE_OF[type(request)], request, body)


def decode_request(packet: Packet) -> Request:
    """The typed request of a parsed packet.

    Raises ProtocolError for an unknown type or a wrong number of fields.
    """
    cls = PACKET_TYPES.get(packet.type)
    if cls is None:
        raise ProtocolError(f"packet type {packet.type} is unknown to protocol version {PROTOCOL_VERSION}")
    try:
        return cls(*packet.fields)  # type: ignore[no-any-return]
    except TypeError as error:
        raise ProtocolError(f"{cls.__name__} with {len(packet.fields)} fields: {error}") from None


def check_request(request: Request) -> None:
    """Raise ProtocolError for a request that actors do not take.

    Or one whose fields hold what they cannot.

    A request that is refused has changed nothing.
    """
    kind = type(request)
    plain = _PLAIN.get(kind)
    if plain is not None:
        types, places = plain
        if tuple(map(type, request)) != types:
            wrong = [type(value) is not wanted for value, wanted in zip(request, types, strict=True)]
            raise _refusal(request, wrong.index(True))
        for place in places:
            if not -1 <= request[place] < NUMBER_END:  # type: ignore[operator]
                raise _refusal(request, place)
        return
    checks = _CHECKS.get(kind)
    if checks is None:
        raise ProtocolError(f"{kind.__name__} is no request to an actor")
    for place, (check, value) in enumerate(zip(checks, request, strict=True)):
        if not check(value):
            raise _refusal(request, place)


def _refusal(request: Request, place: int) -> ProtocolError:
    name, value = request._fields[place], request[place]
    return ProtocolError(f"{type(request).__name__}: {name} cannot be {value!r:.100}")


def _plain(kind: type[Any]) -> tuple[tuple[type[Any], ...], tuple[int, ...]]:
    """The declared types of the fields, and the places of the numbers among them."""
    types = tuple(get_type_hints(kind).values())
    return types, tuple(place for place, declared in enumerate(types) if declared is int)


def _checks_of(kind: type[Any]) -> tuple[Check, ...]:
    """The checks that the fields are declared with."""
    return tuple(hint.__metadata__[0] for hint in get_type_hints(kind, include_extras=True).values())


# The types, and one range for all numbers, say enough of the frequent ones.
_PLAIN: dict[type[Any], tuple[tuple[type[Any], ...], tuple[int, ...]]] = {
    kind: _plain(kind)
    for kind in (Publish, Credit, Ping, CloseEndpoint, RedeliverUnacknowledged, Unreadable, Follow)
}
_CHECKS: dict[type[Any], tuple[Check, ...]] = {
    kind: _checks_of(kind)
    for kind in (OpenProducer, MoveHold, OpenConsumer, Acknowledge, NegativeAcknowledge, Call, Leave)
}
