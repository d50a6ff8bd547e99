"""Connecting a blocking client's socket and being let in."""

from __future__ import annotations

import socket
import time
from typing import Any

from pulsar_ray.errors import ConnectError
from pulsar_ray.lane.address import LaneAddress, UnixAddress, configure_socket, set_kernel_timeout
from pulsar_ray.lane.hello import HelloFields, encode_hello, parse_welcome
from pulsar_ray.lane.limits import LaneLimits
from pulsar_ray.lane.peer import check_listener
from pulsar_ray.session.packet import HEADER_BYTES, decode_packet, packet_length


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
