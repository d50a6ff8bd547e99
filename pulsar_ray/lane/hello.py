"""The first packets of a lane: hello, and welcome or an error.

Every kind of lane end uses them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from pulsar_ray.errors import ProtocolError, PulsarException, Result, UnknownError, error_from
from pulsar_ray.session.packet import ERROR, HELLO, WELCOME, Buffer, Packet, encode_packet

TOKEN_BYTES = 32
_MAX_ERROR_TEXT = 2_000


class HelloFields(NamedTuple):
    """A client's session and token.

    Attaching through the actor's handle gave them to the client.
    """

    protocol_version: int
    session_id: int
    token: bytes
    attachment_number: int


class SessionDecision(NamedTuple):
    """A hello is accepted.

    The lane keeps `session` for the owner and sends the fields of `welcome` back.
    """

    session: Any = None
    welcome: tuple[Any, ...] = ()


def encode_hello(hello: HelloFields) -> list[Buffer]:
    """The client's first packet."""
    return encode_packet(HELLO, hello)


def parse_hello(packet: Packet) -> HelloFields:
    """The hello in a lane's first packet.

    Raises ProtocolError for anything else; the token is not judged here.
    """
    if packet.type != HELLO:
        raise ProtocolError(f"the first packet is of type {packet.type}, not a hello")
    if packet.body.nbytes or len(packet.fields) != len(HelloFields._fields):
        raise ProtocolError(
            f"a hello with {len(packet.fields)} fields and {packet.body.nbytes} bytes of body"
        )
    hello = HelloFields(*packet.fields)
    numbers = (hello.protocol_version, hello.session_id, hello.attachment_number)
    if any(type(number) is not int for number in numbers) or type(hello.token) is not bytes:
        raise ProtocolError("a hello with fields of wrong types")
    if len(hello.token) != TOKEN_BYTES:
        raise ProtocolError(f"a hello with a token of {len(hello.token)} bytes")
    return hello


def encode_welcome(fields: tuple[Any, ...]) -> list[Buffer]:
    """The server's answer to an accepted hello."""
    return encode_packet(WELCOME, fields)


def encode_error(error: PulsarException) -> list[Buffer]:
    """The last packet of a lane that this end closes because of `error`."""
    text = error.text[:_MAX_ERROR_TEXT]
    return encode_packet(ERROR, (type(error).__name__, int(error.result), text, error.details))


def parse_welcome(packet: Packet) -> tuple[Any, ...]:
    """The welcome's fields. Raises the server's error if it refused, ProtocolError for anything else."""
    if packet.type == ERROR:
        raise parse_error(packet)
    if packet.type != WELCOME:
        raise ProtocolError(f"the answer to a hello is of type {packet.type}")
    return packet.fields


def parse_error(packet: Packet) -> PulsarException:
    """The error of an ERROR packet, as an instance of its own class.

    Of an unknown class it is that of its code.
    """
    try:
        name, result, text, details = packet.fields
        error = error_from(str(name), str(text), dict(details))
        if type(error) is UnknownError and result != Result.UnknownError:
            return error_from(int(result), f"{name}: {text}")
    except (TypeError, ValueError):
        return ProtocolError("the peer closed the lane with an error packet that cannot be read")
    return error
