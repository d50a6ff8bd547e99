from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pulsar_ray.launch import listeners
from pulsar_ray.launch.listeners import split_address, takers, takers_on_loopback


@pytest.mark.parametrize(
    ("family", "bound", "asked", "is_alone"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", True),
        (socket.AF_INET, "127.0.0.1", "localhost", True),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1", False),
        (socket.AF_INET6, "::", "127.0.0.1", False),
        (socket.AF_INET6, "::1", "::1", True),
        # As Ray's servers listen.
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1", True),
    ],
)
def test_the_listener_of_a_port_is_found_with_its_address_and_user(
    family: socket.AddressFamily, bound: str, asked: str, is_alone: bool
) -> None:
    try:
        server = socket.socket(family)
        server.bind((bound, 0))
    except OSError as error:
        pytest.skip(f"no {bound} here: {error}")
    with server:
        server.listen()
        port = server.getsockname()[1]
        host = f"[{asked}]" if ":" in asked else asked
        assert bool(takers_on_loopback(f"{host}:{port}")) == is_alone
        (taker,) = takers("127.0.0.1" if asked == "localhost" else asked, port)
        assert taker.uid == os.geteuid()
        assert taker.address.is_loopback == is_alone
    assert not takers_on_loopback(f"{host}:{port}"), "nobody listens any more"


def test_who_listens_at_the_very_address_is_before_who_listens_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["  sl  local_address ..."]
    for address, state, uid in (
        ("00000000:1F90", "0A", 7),
        ("0100007F:1F90", "0A", 8),
        ("0100007F:1F90", "01", 9),  # a connection
        ("0100007F:1F91", "0A", 10),
    ):
        lines.append(f"   0: {address} 00000000:0000 {state} 0:0 00:0 0 {uid} 0 1 1 0 100 0 0 10 0")
    table = tmp_path / "tcp"
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(listeners, "TABLES", (table, tmp_path / "none"))
    monkeypatch.setattr(socket, "htonl", lambda number: number << 24)  # the table is of such a machine
    assert [taker.uid for taker in takers("127.0.0.1", 8080)] == [8]
    assert [taker.uid for taker in takers("192.0.2.1", 8080)] == [7]
    assert takers("192.0.2.1", 8081) == []
    assert takers("a.name", 8080) == []


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("a:1", ("a", 1)),
        ("[::1]:2", ("::1", 2)),
        ("a", None),
        ("a:", None),
        (":1", None),
        ("a:x", None),
        ("", None),
    ],
)
def test_addresses_are_split(address: str, parts: tuple[str, int] | None) -> None:
    assert split_address(address) == parts
