"""Lets a client in to a lane: limits, hello and welcome, and connecting."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from pulsar_ray.errors import ConnectError, ProtocolError, PulsarException, Result, UnknownError, error_from
from pulsar_ray.lane.address import (
    LaneAddress,
    UnixAddress,
    check_listener,
    configure_socket,
    set_kernel_timeout,
)
from pulsar_ray.session.packet import (
    ERROR,
    HEADER_BYTES,
    HELLO,
    MAX_PACKET_BYTES,
    WELCOME,
    Buffer,
    Packet,
    decode_packet,
    encode_packet,
    packet_length,
)

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """Deadlines in seconds and sizes in bytes; tests shorten them, the defaults are the product's."""

    connect_s: float = 1.0
    hello_s: float = 5.0
    """From the connection to a valid hello (server), from the hello to its answer (client)."""
    packet_s: float = 30.0
    """From a packet's first byte to its last, while the receiver reads."""
    write_s: float = 30.0
    """Without the peer taking a single byte of what waits for it."""
    close_s: float = 5.0
    """For flushing what was written before `close`."""
    peer_death_s: float = 0.1
    """Time in which the last bytes of an exiting process are read.

    Such a process closes its sockets a moment before its pidfd is readable.
    """
    hello_bytes: int = 256
    packet_bytes: int = MAX_PACKET_BYTES
    received_bytes: int = 64 * MIB
    """Of one server: received and neither answered nor dropped. Beyond it nothing more is read."""
    lane_received_bytes: int = 32 * MIB
    unsent_high_bytes: int = 4 * MIB
    """Stop reading a lane with more than this unsent.

    Reading goes on when the lane has drained to `unsent_low_bytes`.
    """
    unsent_low_bytes: int = MIB
    unsent_bytes: int = 64 * MIB
    """A lane with more than this waiting to be written is closed."""


# Every kind of lane end uses them.

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


def open_lane(
    address: LaneAddress, hello: HelloFields, limits: LaneLimits
) -> tuple[socket.socket, tuple[Any, ...]]:
    """A connected blocking socket and the welcome's fields; nothing after the welcome was read.

    Raises ConnectError when nobody is there or answers in time, UntrustedPath when another user listens
    there, the server's error when it refuses.
    """
    sock = address.new_socket()
    try:
        _connect(sock, address, limits.connect_s)
        configure_socket(sock)
        sock.settimeout(limits.hello_s)
        deadline = time.monotonic() + limits.hello_s
        sock.sendall(b"".join(encode_hello(hello)))
        header = _receive_exactly(sock, HEADER_BYTES, deadline)
        rest = _receive_exactly(sock, packet_length(header) - HEADER_BYTES, deadline)
        welcome = parse_welcome(decode_packet(header + rest))
        sock.settimeout(None)
        set_kernel_timeout(sock, socket.SO_SNDTIMEO, limits.write_s)
    except OSError as error:
        sock.close()
        raise ConnectError(f"{address}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    return sock, welcome


def _connect(sock: socket.socket, address: LaneAddress, timeout_s: float) -> None:
    if not isinstance(address, UnixAddress):
        sock.settimeout(timeout_s)
        sock.connect(address.target())
        return
    # A Unix socket without O_NONBLOCK waits for room in the listener's backlog, bounded by the send timeout.
    set_kernel_timeout(sock, socket.SO_SNDTIMEO, timeout_s)
    sock.connect(address.target())
    check_listener(sock, address.path)


def _receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    received = bytearray()
    while len(received) < count:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no answer to the hello in time")
        sock.settimeout(remaining)
        piece = sock.recv(count - len(received))
        if not piece:
            raise ConnectionResetError("closed without an answer to the hello")
        received += piece
    return bytes(received)
