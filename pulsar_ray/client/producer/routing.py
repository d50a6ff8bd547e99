"""Chooses the partition of a topic that a message goes to.

Routing looks at the partition key only: a message with an ordering key alone, or with an empty key, is
keyless here.
"""

from __future__ import annotations

import functools
import random
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import mmh3

from pulsar_ray.client.options.producer_options import MessageRouter, ProducerOptions
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.enums import HashingScheme, PartitionsRoutingMode

_POSITIVE = 0x7FFFFFFF
_CACHED_KEY_LENGTH = 64  # longer keys are hashed each time, so that the cache stays small


def java_string_hash(key: str) -> int:
    """Hash as Java's String.hashCode, over UTF-16 code units.

    The sign bit is masked off (not abs()).
    """
    if len(key) <= _CACHED_KEY_LENGTH:
        return _cached_java_string_hash(key)
    return _java_string_hash(key)


def _java_string_hash(key: str) -> int:
    encoded = key.encode("utf-16-le", "surrogatepass")
    value = 0
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & _POSITIVE


_cached_java_string_hash = functools.lru_cache(maxsize=65_536)(_java_string_hash)


def murmur3_32_hash(key: str) -> int:
    """Murmur3 x86 32-bit, seed 0, over UTF-8, with the sign bit masked off."""
    return mmh3.hash(key.encode(), 0, signed=False) & _POSITIVE


def key_hash_function(scheme: HashingScheme) -> Callable[[str], int]:
    """The hash of partition keys that a `hashing_scheme` names."""
    return murmur3_32_hash if scheme == HashingScheme.Murmur3_32Hash else java_string_hash


class Router(Protocol):
    """Chooses partitions for one producer.

    Called under the producer's lock, unless it `needs_message`.
    """

    needs_message: bool
    """Whether `choose` must be given the message itself.

    Building one costs, so only custom routers ask for it.
    """

    def choose(self, key: str | None, message: Message | None = None) -> int:
        """The partition index of the next message."""

    def set_partition_count(self, count: int) -> None:
        """The topic has grown; from now on all `count` partitions are used."""


class SinglePartitionRouter:
    """Sends keyless messages to one partition, keyed ones by hash."""

    needs_message = False

    def __init__(self, count: int, single: int, key_hash: Callable[[str], int]) -> None:
        self._count = count
        self._single = single % count
        self._key_hash = key_hash

    def choose(self, key: str | None, message: Message | None = None) -> int:
        return self._key_hash(key) % self._count if key else self._single

    def set_partition_count(self, count: int) -> None:
        self._count = count


class RoundRobinRouter:
    """Lets keyless messages take turns over the partitions, one message each.

    Keyed ones go by hash.
    """

    needs_message = False

    def __init__(self, count: int, start: int, key_hash: Callable[[str], int]) -> None:
        self._count = count
        self._current = start % count
        self._key_hash = key_hash

    def choose(self, key: str | None, message: Message | None = None) -> int:
        if key:
            return self._key_hash(key) % self._count
        current = self._current
        self._current = (current + 1) % self._count
        return current

    def set_partition_count(self, count: int) -> None:
        self._count = count


class BatchTurnsRouter:
    """Lets keyless messages take turns over the partitions, one batch each.

    Keyed ones go by hash. The batches say when a turn is over: `batch_sealed` is called while the partition's
    own lock is held, so a thread that holds that lock and sees `current` at this partition knows that the
    turn stays.
    """

    needs_message = False

    def __init__(self, count: int, start: int, key_hash: Callable[[str], int]) -> None:
        self._count = count
        self._key_hash = key_hash
        self._lock = threading.Lock()
        self._destinations: Sequence[Destination] = ()
        self.current = start % count
        """The partition whose batch keyless messages go into. May be read without a lock."""

    def serve(self, destinations: Sequence[Destination]) -> None:
        """Turns are passed on among these, a list that grows with the topic."""
        self._destinations = destinations

    def choose(self, key: str | None, message: Message | None = None) -> int:
        return self._key_hash(key) % self._count if key else self.current

    def batch_sealed(self, partition: int) -> None:
        """Pass the turn on: the partition's batch with keyless messages was finished."""
        with self._lock:
            if partition == self.current:
                self.current = (partition + 1) % self._count

    def pass_on(self, partition: int) -> None:
        """Pass the turn on from a partition that is away or silent.

        The next one that is neither gets it. It stays if all are silent, or a message would be sent round and
        round.
        """
        with self._lock:
            if partition == self.current:
                self.current = next_available(partition, self._destinations)

    def take_turn(self) -> int:
        """Take the turn for a whole batch made elsewhere; it is over with that."""
        with self._lock:
            current = self.current
            self.current = (current + 1) % self._count
        return current

    def set_partition_count(self, count: int) -> None:
        with self._lock:
            self._count = count


class CustomRouter:
    """Asks the user's function for every message, keyed or not."""

    needs_message = True

    def __init__(self, count: int, function: MessageRouter) -> None:
        self._count = count
        self._function = function

    def choose(self, key: str | None, message: Message | None = None) -> int:
        """Ask the function.

        Raises ValueError if its answer is no index below the partition count; its own errors go through.
        """
        if message is None:
            raise ValueError("a custom router needs the message")
        index = self._function(message, self._count)
        if type(index) is not int or not 0 <= index < self._count:
            raise ValueError(
                f"message_router returned {index!r} for a topic of {self._count} partitions; "
                f"it must return an int from 0 to {self._count - 1}"
            )
        return index

    def set_partition_count(self, count: int) -> None:
        self._count = count


class Destination(Protocol):
    """A partition that messages can go to."""

    @property
    def takes_keyless(self) -> bool:
        """Whether messages that may go to any partition should come here."""


def find_available(index: int, router: Router, partitions: Sequence[Destination]) -> int:
    """Choose another partition for a keyless message than one that is away.

    To one whose turn is next, or that follows; to the given one if all are away.
    """
    for _ in partitions:
        chosen = router.choose(None)
        if partitions[chosen].takes_keyless:
            return chosen
    return next_available(index, partitions)


def next_available(index: int, partitions: Sequence[Destination]) -> int:
    """Find the first partition that takes keyless messages, from `index` on.

    Returns `index` if none does.
    """
    following = range(index, index + len(partitions))
    others = (other % len(partitions) for other in following)
    return next((other for other in others if partitions[other].takes_keyless), index)


def new_router(options: ProducerOptions, count: int, start: int | None = None) -> Router:
    """Make the router of a producer on `count` partitions.

    `start` says where keyless messages begin; None is a random place, so that producers spread.
    """
    if options.message_router is not None:
        return CustomRouter(count, options.message_router)
    start = random.randrange(count) if start is None else start
    key_hash = key_hash_function(options.hashing_scheme)
    if options.message_routing_mode == PartitionsRoutingMode.UseSinglePartition:
        return SinglePartitionRouter(count, start, key_hash)
    if options.batching_enabled:
        return BatchTurnsRouter(count, start, key_hash)
    return RoundRobinRouter(count, start, key_hash)
