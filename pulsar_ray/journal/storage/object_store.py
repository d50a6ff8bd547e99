"""The journal asks this of an object store, and has it proved."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pulsar_ray.errors import RemoteStoreRefused, RemoteStoreUnavailable
from pulsar_ray.format.checksum import Buffer
from pulsar_ray.journal.objects import is_object
from pulsar_ray.journal.requests import CREATED, EXISTS, UNKNOWN, Create, Delete, Get, ListKeys


class ObjectStore(Protocol):
    """Named objects with create-only writes; reading and listing see every write that was answered.

    Every method raises `RemoteStoreUnavailable` if the fate of the request is not known, and
    `RemoteStoreRefused` if it would be the same the next time.
    """

    def create(self, key: str, body: bytes) -> bool:
        """Write a durable object, unless there is one; return whether it was written."""

    def get(self, key: str) -> Buffer | None:
        """Return an object's bytes, where its client has them, None if there is none."""

    def list(self, prefix: str) -> list[str]:
        """Return the sorted names that begin with a prefix, which ends with a slash."""

    def head(self, key: str) -> int | None:
        """Return an object's length, None if there is none."""

    def delete(self, keys: tuple[str, ...]) -> None:
        """Delete the objects that are there."""


class Listed(NamedTuple):
    """One object, as a list of all of them tells it."""

    key: str
    size: int
    modified_s: float


def listed(store: ObjectStore, prefix: str) -> list[str]:
    """Return the sorted names of our objects that begin with a prefix."""
    return list(filter(is_object, store.list(prefix)))


def carry_out(store: ObjectStore, request: Create | Get | ListKeys | Delete) -> object:
    """Carry one request out, and return the answer that its task gets."""
    try:
        if isinstance(request, Create):
            return CREATED if store.create(request.key, request.body) else EXISTS
        if isinstance(request, Get):
            return store.get(request.key)
        if isinstance(request, ListKeys):
            return listed(store, request.prefix)
        store.delete(request.keys)
    except RemoteStoreUnavailable:
        return UNKNOWN
    return None


def prove(store: ObjectStore, nonce: str) -> None:
    """Show that the store keeps what the journal rests on, or raise `RemoteStoreRefused`."""
    prefix = f"proof/{nonce}/"
    key, first, second = f"{prefix}object", b"first", b"second"
    if not store.create(key, first):
        raise RemoteStoreRefused(f"{key} exists although its name was never used")
    try:
        if store.create(key, second) or store.get(key) != first:
            raise RemoteStoreRefused(
                "the store overwrites objects: it ignores create-only writes (If-None-Match)"
            )
        if store.list(prefix) != [key] or store.head(key) != len(first):
            raise RemoteStoreRefused("the store does not list an object that was just written")
    finally:
        store.delete((key,))
