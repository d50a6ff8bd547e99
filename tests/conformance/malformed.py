"""Requests that nobody of ours would send: fields of any type, and of the right types without any sense."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.format.block import ARROW, ROW_IS_ENTRY, encode_block
from pulsar_ray.model.enums import CompressionType
from pulsar_ray.session.requests import (
    PACKET_TYPES,
    Acknowledge,
    Call,
    CloseEndpoint,
    Credit,
    Follow,
    MoveHold,
    NegativeAcknowledge,
    OpenConsumer,
    OpenProducer,
    Publish,
    RedeliverUnacknowledged,
    Unreadable,
)
from pulsar_ray.testing.waiting import wait_until

GARBAGE = b"no Arrow"
ENDPOINT = 7
REQUEST = 5
_NUMBERS = (-1, 0, 1, 2, 5, 99, 8192, 2**31 - 1, 2**32, 2**40, 2**62, 2**63 - 1)
_TEXTS = ("", "s", "n", "x" * 300, "\0")
_ANYTHING: tuple[Any, ...] = (
    *(None, True, "x", b"y", 1.5, float("nan"), -1, 0, 2**63, 2**64 - 1, -(2**63), [], {}, {"a": 1}),
    *([1], [[1, 2]], [["a", "b", "c"]], [[0, 0, [[0, 1]]]], [[0, 0, [["a"]], 0]], [[0, 5, 2]]),
)
# Not unsubscribe: whoever is let in may.
_METHODS = (
    *("seek", "has_more", "last_message", "check_unsubscribe", "register_subscription"),
    *("hold_for_seek", "seek_position", "plan_range", "grant_lease", "check_position", "release_lease", "x"),
)
_ARGUMENTS = (
    *(
        (),
        ("target", "inclusive"),
        ("seek_id", "target", "inclusive"),
        ("number", "target", "inclusive"),
        ("numbering", "received"),
        ("position",),
        ("lease_id",),
    ),
    *(("first", "last", "expires_ms"), ("start", "end", "slice_bytes", "lease_ms"), ("wrong",)),
    ("name", "durable", "initial", "properties", "create"),
)


def of_any_types(rng: random.Random) -> tuple[int, tuple[Any, ...]]:
    """Packet type and fields; the ids are often those of what is open, so that it gets somewhere."""
    number, kind = rng.choice(sorted(PACKET_TYPES.items(), key=lambda item: item[0]))
    known: dict[str, Any] = dict.fromkeys(("producer_id", "consumer_id", "endpoint_id"), ENDPOINT) | {
        "request_id": REQUEST
    }
    known |= {"method": rng.choice(_METHODS), "arguments": _arguments(rng, lambda: rng.choice(_ANYTHING))}
    fields = [
        known[field] if field in known and rng.random() < 0.8 else rng.choice(_ANYTHING)
        for field in kind._fields
    ]
    return number, tuple(fields)


def _arguments(rng: random.Random, value: Callable[[], Any]) -> dict[str, Any]:
    return {name: value() for name in rng.choice(_ARGUMENTS)}


class Nonsense:
    """Makes requests that are well formed; positions are often near those of a ledger that exists."""

    def __init__(self, rng: random.Random, ledger_id: int) -> None:
        self._rng = rng
        self._ledgers = (-1, 0, ledger_id, ledger_id, ledger_id + 1, 2**63 - 1)

    def request(self) -> Any:
        """The next one."""
        makers = (
            *(self._open_producer, self._open_consumer, self._follow, self._move_hold, self._acknowledge),
            *(
                self._negative_acknowledge,
                self._call,
                self._credit,
                self._close,
                self._redeliver,
                self._unreadable,
            ),
            lambda: Publish(ENDPOINT, self._flag()),
        )
        return self._rng.choice(makers)()

    def _number(self) -> int:
        return self._rng.choice(_NUMBERS)

    def _flag(self) -> bool:
        return self._rng.random() < 0.5

    def _text(self) -> str:
        return self._rng.choice(_TEXTS)

    def _some(self, make: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self._rng.randrange(4)))

    def _position(self) -> tuple[int, int]:
        return self._rng.choice(self._ledgers), self._number()

    def _rows(self) -> tuple[Any, ...]:
        return self._some(lambda: tuple(sorted(self._rng.choice(_NUMBERS[1:8]) for _ in range(2))))

    def _target(self) -> Any:
        return self._rng.choice(["earliest", "latest", self._number(), self._position()])

    def _incarnation(self) -> int:
        return self._rng.choice([0, 99, 100, 2**64 - 1])

    def _open_producer(self) -> Any:
        name = self._rng.choice([None, self._text()])
        numbers = (self._incarnation(), self._incarnation(), self._number(), self._number())
        fields: Any = (REQUEST, ENDPOINT + 1, name, *numbers, self._flag())
        return OpenProducer(*fields)

    def _open_consumer(self) -> Any:
        held = self._some(lambda: (*self._position(), self._rows()))
        start = self._rng.choice([None, {"target": self._target(), "inclusive": self._flag()}])
        ranges = self._some(lambda: (self._number(), self._number()))
        keys = self._rng.choice([None, (self._rng.randrange(-1, 4), self._flag(), ranges)])
        fields: Any = (
            *(REQUEST, ENDPOINT + self._rng.randrange(2), self._text(), self._incarnation()),
            *(self._rng.randrange(4), self._number(), self._flag(), self._flag(), self._number()),
            *(self._number(), held, start, self._text(), self._number(), self._number(), self._flag()),
            *(keys, self._number(), self._rng.choice([None, self._number()])),
        )
        return OpenConsumer(*fields)

    def _follow(self) -> Any:
        return Follow(self._number(), self._number(), self._flag(), self._number(), self._text())

    def _move_hold(self) -> Any:
        # Not of a subscription that is there: its dispatcher alone knows where it stands.
        return MoveHold(self._rng.choice([-1, 99, 2**62]), *self._position())

    def _acknowledge(self) -> Any:
        bits = self._some(
            lambda: (self._position()[0], abs(self._number()), self._rng.randbytes(self._rng.randrange(2000)))
        )
        cumulative = self._rng.choice([None, (*self._position(), self._rng.choice([-1, 0, 2**31 - 1]))])
        fields: Any = (
            *(REQUEST, ENDPOINT, self._some(lambda: (*self._position(), self._number()))),
            *(self._some(lambda: (*self._position(), self._rows())), cumulative, self._flag()),
            *(self._rng.choice([None, self._number()]), bits),
        )
        return Acknowledge(*fields)

    def _negative_acknowledge(self) -> Any:
        def failure() -> Any:
            return self._position()[0], abs(self._number()), self._rows(), self._number()

        first_sent = self._rng.choice([None, (self._number(), self._number())])
        return NegativeAcknowledge(ENDPOINT, self._some(failure), REQUEST, self._number(), None, first_sent)

    def _credit(self) -> Any:
        return Credit(ENDPOINT, self._number(), self._number(), self._number())

    def _close(self) -> Any:
        return CloseEndpoint(REQUEST, self._number())

    def _redeliver(self) -> Any:
        return RedeliverUnacknowledged(ENDPOINT, self._number(), self._number(), REQUEST)

    def _unreadable(self) -> Any:
        return Unreadable(ENDPOINT, *self._position(), REQUEST, self._number())

    def _call(self) -> Any:
        makers: dict[str, Callable[[], Any]] = {
            **dict.fromkeys(("target", "start", "end"), self._target),
            **dict.fromkeys(("position", "first", "last"), self._position),
            **dict.fromkeys(("inclusive", "durable"), self._flag),
            **dict.fromkeys(("lease_ms", "expires_ms", "lease_id", "seek_id"), self._number),
            **dict.fromkeys(("numbering", "received"), self._number),
            "slice_bytes": lambda: self._rng.choice([1, 2**40]),
            "initial": lambda: self._rng.choice(["earliest", "latest", self._position()]),
            "number": lambda: 99,
            "name": self._text,
            "properties": lambda: {self._text(): self._text()},
            "create": lambda: False,
            "wrong": self._text,
        }
        arguments = {name: makers[name]() for name in self._rng.choice(_ARGUMENTS)}
        return Call(REQUEST, ENDPOINT, self._rng.choice(_METHODS), arguments)


def publish_garbage(
    producer: Producer, rows: int = 8192, *, rows_are_entries: bool = False, uncompressed_length: int = 0
) -> None:
    """Store a block of a few bytes, whose checksum is right, and that claims to have so many messages."""
    receipts: list[Any] = []

    def encode(incarnation: int, entry_seq: int, _name: str, first_id: int) -> list[Any]:
        return encode_block(
            GARBAGE,
            incarnation=incarnation,
            entry_seq=entry_seq,
            first_sequence_id=first_id,
            last_sequence_id=first_id + rows - 1,
            publish_time_ms=1,
            message_count=rows,
            payload_format=ARROW,
            columns=1,
            codec=int(CompressionType.ZLib),
            uncompressed_length=uncompressed_length or 16 * rows,
            flags=ROW_IS_ENTRY if rows_are_entries else 0,
        )

    entries = rows if rows_are_entries else 1
    producer._partitions[0].queue.add_block(
        encode, entries=entries, messages=rows, size=len(GARBAGE), done=lambda *one: receipts.append(one)
    )
    wait_until(lambda: receipts, what="the receipt of a block of garbage")
    assert receipts[0][2] is None, receipts
