"""Gives the Ray of each embedded broker a token of its own.

It is worth nothing once that Ray has ended.

Processes of Ray send their token in the clear to whoever listens on a port that they know. When a broker ends
before its clients, another user may take such a port, and is sent the token. A token of the user's, which
`ray start` and every later broker take too, would let that user run code here; so each broker makes one of
its own, and leaves it for its clients in a file that only its user can read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Any

import ray

from pulsar_ray.closed_places import make_closed_directory, open_own_file, read_trusted_file
from pulsar_ray.errors import UntrustedPath
from pulsar_ray.lane.address import user_directory
from pulsar_ray.launch.listeners import split_address, takers_on_loopback
from pulsar_ray.launch.rays.joined_ray import knows_tokens, share_auth_mode

_VARIABLE = "RAY_AUTH_TOKEN"
_PREFIX = "token-"


class _Taken:
    """Keeps the variable as it was before this process took a broker's token."""

    def __init__(self) -> None:
        self.is_ours = False
        self.former: str | None = None


_TAKEN = _Taken()


def token_file(address: str) -> Path | None:
    """The file with the token of the embedded broker whose Ray listens at host:port.

    None if nobody listens there on the loopback interface alone, or the broker has left no token.
    """
    parts = split_address(address)
    if parts is None or not takers_on_loopback(address):
        return None
    path = _file_of(parts[1])
    return path if path.exists() else None


def make_token() -> None:
    """Make a token for the Ray that this process starts next.

    Whatever token its user has is left alone.
    """
    _put(secrets.token_hex(32))


def leave_token(address: str) -> None:
    """Leave the token for the clients of the Ray at host:port.

    Those of brokers that are gone are removed. Raises UntrustedPath, OSError.
    """
    parts = split_address(address)
    if parts is None or not _TAKEN.is_ours:
        return
    make_closed_directory(user_directory())
    for path in user_directory().glob(f"{_PREFIX}*"):
        if not takers_on_loopback(f"127.0.0.1:{path.name.removeprefix(_PREFIX)}"):
            path.unlink(missing_ok=True)
    path = _file_of(parts[1])
    staged = path.with_name(f"new-{path.name}")
    staged.unlink(missing_ok=True)
    with open(staged, "x", opener=open_own_file) as file:
        file.write(os.environ[_VARIABLE])
    os.replace(staged, path)


def forget_token(address: str) -> None:
    """Remove the token of a Ray that has ended."""
    if (parts := split_address(address)) is not None:
        _file_of(parts[1]).unlink(missing_ok=True)


def take_token(address: str) -> None:
    """Use the token of the embedded broker at host:port from now on; before `ray.init`.

    For any other Ray the token counts that the user has, and one that was taken before is given back.
    """
    if not knows_tokens():
        return
    path, token = token_file(address), ""
    if path is not None:
        with contextlib.suppress(OSError, ValueError, UntrustedPath):
            token = read_trusted_file(path)
    if token:
        share_auth_mode("token")
        _put(token)
    else:
        give_token_back()


def give_token_back() -> None:
    """Use the token that the user has from now on."""
    if _TAKEN.is_ours:
        _TAKEN.is_ours = False
        if _TAKEN.former is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = _TAKEN.former
        _read_again()


def _put(token: str) -> None:
    if not _TAKEN.is_ours:
        _TAKEN.is_ours, _TAKEN.former = True, os.environ.get(_VARIABLE)
    # For processes that are started from here too: Ray's own, and Spark's.
    os.environ[_VARIABLE] = token
    _read_again()


def _read_again() -> None:
    # Ray reads the token once.
    raylet: Any = ray._raylet  # noqa: SLF001
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _file_of(port: int) -> Path:
    return user_directory() / f"{_PREFIX}{port}"
