"""Looks in the kernel's tables who listens on a port of this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Everybody's sockets of this network namespace, with the user of each; readable for everybody."""
_LISTENING = "0A"
_WORD = 4
IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that takes connections, and the user whose it is."""

    address: IpAddress
    port: int
    uid: int


def split_address(address: str) -> tuple[str, int] | None:
    """Split "host:port" into the host, without brackets, and the port.

    None for anything else.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    return (host, int(port)) if host and port.isascii() and port.isdigit() else None


def takers(host: str, port: int) -> list[Listener]:
    """List the sockets that get this machine's connections to an IP address and port.

    Those bound to the very address, else those bound to all addresses; none if nobody listens.
    """
    try:
        sought = _plain(ipaddress.ip_address(host))
    except ValueError:
        return []
    found = [listener for listener in _listeners() if listener.port == port]
    exact = [listener for listener in found if listener.address == sought]
    return exact or [listener for listener in found if listener.address.is_unspecified]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's loopback interface, which no other machine reaches."""
    try:
        return host == "localhost" or _plain(ipaddress.ip_address(host)).is_loopback
    except ValueError:
        return False


def takers_on_loopback(address: str) -> list[Listener]:
    """List the sockets that get the connections to a loopback host:port.

    Those that listen there only: none for another host, and where who listens does so on all interfaces.
    """
    parts = split_address(address)
    if parts is None or not is_loopback(parts[0]):
        return []
    hosts = ("127.0.0.1", "::1") if parts[0] == "localhost" else (parts[0],)
    found = (taker for host in hosts for taker in takers(host, parts[1]))
    return [taker for taker in found if taker.address.is_loopback]


def _listeners() -> Iterator[Listener]:
    for table in TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # a kernel without this family
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING:
                address, _, port = fields[1].partition(":")
                yield Listener(_decoded(address), int(port, 16), int(fields[7]))


def _decoded(text: str) -> IpAddress:
    """The kernel prints each 32 bits of an address as a number of this machine."""
    raw = bytes.fromhex(text)
    words = [raw[at : at + _WORD] for at in range(0, len(raw), _WORD)]
    is_swapped = socket.htonl(1) != 1
    network = b"".join(word[::-1] if is_swapped else word for word in words)
    return _plain(ipaddress.ip_address(network))


def _plain(address: IpAddress) -> IpAddress:
    """An IPv4 address that a socket of IPv6 has, as such."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
