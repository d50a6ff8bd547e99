"""The token of an embedded broker's own Ray: made, left for clients, taken by them, given back."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.launch import broker_token
from pulsar_ray.launch.broker_token import (
    forget_token,
    give_token_back,
    leave_token,
    make_token,
    take_token,
    token_file,
)

USERS = "the user's own token"


@pytest.fixture(autouse=True)
def modes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The auth modes that were asked for; no Ray is touched."""
    asked: list[str] = []
    monkeypatch.setattr(broker_token, "user_directory", lambda: tmp_path / "ours")
    monkeypatch.setattr(broker_token, "share_auth_mode", asked.append)
    monkeypatch.setattr(broker_token, "knows_tokens", lambda: True)
    monkeypatch.setattr(broker_token, "_read_again", lambda: None)
    monkeypatch.setattr(broker_token, "_TAKEN", broker_token._Taken())
    monkeypatch.setenv("RAY_AUTH_TOKEN", USERS)
    yield asked
    give_token_back()
    assert os.environ["RAY_AUTH_TOKEN"] == USERS


@pytest.fixture
def address() -> Iterator[str]:
    """The address of something that listens on the loopback interface alone."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def started(address: str) -> str:
    """A broker that has left its token, in a process that has ended as far as this one knows."""
    make_token()
    leave_token(address)
    token = os.environ["RAY_AUTH_TOKEN"]
    give_token_back()
    return token


def test_each_broker_has_a_token_of_its_own_and_its_clients_find_it(address: str, modes: list[str]) -> None:
    former, token = started(address), started(address)
    assert len({former, token, USERS}) == 3
    take_token(address)
    assert (os.environ["RAY_AUTH_TOKEN"], modes) == (token, ["token"])
    take_token(address)
    give_token_back()
    assert os.environ["RAY_AUTH_TOKEN"] == USERS


def test_nobody_else_can_read_the_token(address: str) -> None:
    umask = os.umask(0)
    try:
        started(address)
    finally:
        os.umask(umask)
    path = token_file(address)
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_another_ray_is_shown_the_users_token(address: str, modes: list[str]) -> None:
    started(address)
    take_token(address)
    for other in ("192.0.2.1:6379", "127.0.0.1:1", "nonsense"):
        take_token(other)
        assert os.environ["RAY_AUTH_TOKEN"] == USERS
    assert modes == ["token"]


def test_a_token_that_others_may_have_put_there_is_not_taken(address: str) -> None:
    started(address)
    path = token_file(address)
    assert path is not None
    path.chmod(0o622)
    take_token(address)
    assert os.environ["RAY_AUTH_TOKEN"] == USERS


def test_what_brokers_left_that_were_killed_goes_with_the_next_start(address: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        started(f"127.0.0.1:{server.getsockname()[1]}")
    started(address)
    assert [path.name for path in (tmp_path / "ours").iterdir()] == [f"token-{address.rpartition(':')[2]}"]
    forget_token(address)
    assert token_file(address) is None


def test_where_no_token_was_made_the_users_is_left_to_nobody(address: str) -> None:
    leave_token(address)
    assert token_file(address) is None
