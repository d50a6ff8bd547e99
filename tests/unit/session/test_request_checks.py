"""What a packet's fields may hold: everything that clients and dispatchers say, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import (
    PACKET_TYPES,
    Acknowledge,
    Call,
    CloseEndpoint,
    Credit,
    Follow,
    Leave,
    MoveHold,
    NegativeAcknowledge,
    OpenConsumer,
    OpenProducer,
    Ping,
    Publish,
    RedeliverUnacknowledged,
    Request,
    Unreadable,
    check_request,
    decode_request,
    encode_request,
)

INCARNATION = 2**64 - 1
OPEN = OpenConsumer(1, 2, "c", INCARNATION, 1, 0, False, True, 0, 0, (), None, "s", 0)
SAID: list[Any] = [
    OpenProducer(1, 2, None, INCARNATION, 0, 0, 0, False),
    OpenProducer(1, 2, "p", 1, INCARNATION, 2**62, 3, True),
    CloseEndpoint(1, 2),
    Publish(2),
    Publish(2, True),
    Follow(2**40, -1, True),
    Follow(0, 5, False, 2**50, "s"),
    MoveHold(1, -1, -1),
    MoveHold(1, 2**40, 7),
    OPEN,
    OPEN._replace(held=((2**40, 3, ((0, 5), (7, 8))), (2**40, 9, ()))),
    OPEN._replace(start={"target": "earliest", "inclusive": True}),
    OPEN._replace(start={"target": 1_700_000_000_000, "inclusive": False}),
    OPEN._replace(start={"target": (2**40, 3), "inclusive": False}),
    OPEN._replace(key_shared=(1, False, ((0, 30_000), (30_001, 65_535))), generation=2**40),
    Credit(2, 1000, 5, 3),
    Acknowledge(1, 2, ((2**40, 0, 9),), ((2**40, 11, ((0, 5),)),), None),
    Acknowledge(0, 2, (), (), (2**40, 11, -1), False, 3, ((2**40, 5, b"\xff\x01"),)),
    NegativeAcknowledge(2, ((2**40, 3, ((0, 1),), 0), (2**40, 4, (), -1)), 1),
    RedeliverUnacknowledged(2, 2**40, 17, 1),
    Call(1, 2, "seek", {"target": "latest", "inclusive": False}),
    Ping(1),
    Leave("its process ends"),
    OpenProducer(1, 2, "p", 1, INCARNATION, 2**62, 3, True, {"host": "a", "": ""}),
    OPEN._replace(properties={"host": "a"}),
    NegativeAcknowledge(2, ((2**40, 3, (), 0),), 1, 17, (2**40, 1, 0)),
    NegativeAcknowledge(2, ((2**40, 3, (), -1),), 1, 17, None, (2**40, 16)),
    Unreadable(2, 2**40, 3, 1, 5),
]
NOWHERE_RIGHT: list[Any] = [1.5, float("nan"), -2, -(2**63), 2**64 - 1, (1, "x"), ({},), {1: 2}, ((((),),),)]
"""Fits no field, but for a number of 64 bits those that take one."""


def received(request: Any) -> Request:
    return decode_request(decode_packet(b"".join(encode_request(request))))


@pytest.mark.parametrize("request_", SAID, ids=repr)
def test_what_is_said_is_taken(request_: Any) -> None:
    check_request(received(request_))


FIELDS = [
    pytest.param(request, field, id=f"{type(request).__name__}-{index}-{field}")
    for index, request in enumerate(SAID)
    for field in request._fields
]


@pytest.mark.parametrize(("request_", "field"), FIELDS)
def test_a_wrong_value_is_refused_naming_its_field(request_: Any, field: str) -> None:
    for value in NOWHERE_RIGHT:
        if "incarnation" in field and type(value) is int and value >= 0:
            continue
        with pytest.raises(ProtocolError, match=f"{type(request_).__name__}: {field} cannot be"):
            check_request(request_._replace(**{field: value}))


@pytest.mark.parametrize(
    ("request_", "field", "value"),
    [
        (OPEN, "consumer_type", 4),
        (OPEN, "held", ((1, 2, ((5, 4),)),)),
        (OPEN, "held", ((1, 2, ((-1, 4),)),)),
        (OPEN, "held", ((1, 2, ((0, 2**31),)),)),
        (OPEN, "start", {"target": "middle", "inclusive": True}),
        (OPEN, "start", {"target": "latest"}),
        (OPEN, "start", {"target": (1,), "inclusive": True}),
        (OPEN, "key_shared", (1, False, ((1, 2, 3),))),
        (SAID[16], "ranges", ((1, 2),)),
        (SAID[16], "ranges", ((1, 2, 3), (1, 2, "3"))),
        (SAID[16], "ranges", ((1, 2, 2**63),)),
        (SAID[16], "entry_bits", ((1, -1, b"\x01"),)),
        (SAID[16], "entry_bits", ((1, 0, "text"),)),
        (SAID[16], "cumulative", (1, 2, 2**31)),
        (SAID[18], "items", ((1, -1, (), 0),)),
        (SAID[20], "arguments", {1: 2}),
    ],
)
def test_what_nothing_can_be_done_with_is_refused(request_: Any, field: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=field):
        check_request(request_._replace(**{field: value}))


def test_only_what_clients_and_dispatchers_say_is_taken() -> None:
    said = {type(request) for request in SAID}
    for kind in set(PACKET_TYPES.values()) - said:
        answer = kind(*(0 for _ in kind._fields))
        with pytest.raises(ProtocolError, match="no request to an actor"):
            check_request(answer)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(st.sampled_from(SAID), st.data())
def test_any_fields_are_refused_or_taken(request_: Any, data: st.DataObject) -> None:
    some = request_._replace(**{field: data.draw(values) for field in request_._fields})
    try:
        check_request(some)
    except ProtocolError:
        pass
