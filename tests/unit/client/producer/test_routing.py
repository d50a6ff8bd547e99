from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.routing import (
    BatchTurnsRouter,
    Router,
    java_string_hash,
    murmur3_32_hash,
    new_router,
)
from pulsar_ray.client.received.message import Message
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.model.enums import HashingScheme, PartitionsRoutingMode

# key, masked Murmur3_32, masked Java hash: computed for the reference's notes on Pulsar's hash primitives
VECTORS = [
    ("", 0, 0),
    ("hello", 613153351, 99162322),
    ("key-1", 414258592, 101943363),
    ("NONE_KEY", 504741539, 45784248),
    ("orders", 1964526729, 1138713317),
    ("é", 269551495, 233),
    ("polygenelubricants", 1101602400, 0),  # raw 0x80000000: masked, not abs()
    ("Order-3459134", 3112179635 & 0x7FFFFFFF, None),
    ("NON_KEY", 1110787044, None),
]
# key, then partitions of 2, 3 and 10 by JavaStringHash and by Murmur3, as Pulsar's Java client chose them
OBSERVED = [
    ("a", (1, 1, 7), (0, 2, 0)),
    ("hello", (0, 1, 2), (1, 1, 1)),
    ("key-1", (1, 0, 3), (0, 1, 2)),
    ("é", (1, 2, 3), (1, 1, 5)),
]


def router(count: int, start: int = 0, **options: Any) -> Router:
    return new_router(ProducerOptions.from_arguments(topic="t", **options), count, start)


def outgoing(value: bytes = b"v", **fields: Any) -> Message:
    return Message(ReceivedBlock.outgoing("persistent://public/default/t", value, **fields), 0)


@pytest.mark.parametrize(("key", "murmur", "java"), VECTORS)
def test_hash_vectors(key: str, murmur: int, java: int | None) -> None:
    assert murmur3_32_hash(key) == murmur
    if java is not None:
        assert java_string_hash(key) == java


def test_java_hash_counts_utf16_code_units() -> None:
    high, low = 0xD83D, 0xDE00  # the surrogates of U+1F600
    assert java_string_hash("\U0001f600") == 31 * high + low
    assert java_string_hash("\ud83d\ude00") == 31 * high + low


def test_long_keys_hash_as_short_ones_do() -> None:
    long = "orders" * 50
    expected = 0
    for character in long:
        expected = (31 * expected + ord(character)) & 0xFFFFFFFF
    assert java_string_hash(long) == expected & 0x7FFFFFFF


@pytest.mark.parametrize(("key", "java", "murmur"), OBSERVED)
@pytest.mark.parametrize(
    "mode", [PartitionsRoutingMode.RoundRobinDistribution, PartitionsRoutingMode.UseSinglePartition]
)
def test_keys_go_where_pulsars_java_client_sends_them(
    key: str, java: tuple[int, ...], murmur: tuple[int, ...], mode: PartitionsRoutingMode
) -> None:
    for scheme, expected in ((HashingScheme.JavaStringHash, java), (HashingScheme.Murmur3_32Hash, murmur)):
        chosen = [
            router(count, hashing_scheme=scheme, message_routing_mode=mode).choose(key)
            for count in (2, 3, 10)
        ]
        assert tuple(chosen) == expected


def test_unbatched_keyless_messages_take_turns_per_message() -> None:
    turns = router(3, start=5)
    assert [turns.choose(None) for _ in range(4)] == [2, 0, 1, 2]
    assert [turns.choose("") for _ in range(2)] == [0, 1]


def test_keyed_messages_do_not_take_a_turn() -> None:
    turns = router(3)
    assert [turns.choose(key) for key in (None, "hello", None, "hello", None)] == [0, 1, 1, 1, 2]


def test_batched_keyless_messages_move_on_when_their_batch_is_sealed() -> None:
    turns = router(3, batching_enabled=True)
    assert isinstance(turns, BatchTurnsRouter)
    assert [turns.choose(None) for _ in range(3)] == [0, 0, 0]
    turns.batch_sealed(2)  # not the one whose turn it is
    assert turns.choose(None) == 0
    turns.batch_sealed(0)
    turns.batch_sealed(0)  # once is enough
    assert [turns.choose(None), turns.current] == [1, 1]
    turns.batch_sealed(1)
    turns.batch_sealed(2)
    assert turns.choose(None) == 0
    assert [turns.choose(key) for key in ("hello", "a", "hello")] == [1, 1, 1]


def test_a_whole_batch_made_elsewhere_takes_one_turn() -> None:
    turns = router(3, start=1, batching_enabled=True)
    assert isinstance(turns, BatchTurnsRouter)
    assert [turns.take_turn() for _ in range(4)] == [1, 2, 0, 1]
    turns.set_partition_count(5)
    turns.batch_sealed(2)
    assert turns.current == 3


@dataclass
class Place:
    takes_keyless: bool


def test_turns_pass_silent_partitions_and_stay_where_all_are_silent() -> None:
    turns = router(3, batching_enabled=True)
    assert isinstance(turns, BatchTurnsRouter)
    places = [Place(False), Place(False), Place(True)]
    turns.serve(places)
    turns.pass_on(1)  # not the one whose turn it is
    assert turns.current == 0
    turns.pass_on(0)
    assert turns.current == 2
    places[2].takes_keyless = False
    for _ in range(3):
        turns.pass_on(turns.current)
    assert turns.current == 2
    places[0].takes_keyless = True
    turns.pass_on(2)
    assert turns.current == 0


def test_single_partition_keeps_keyless_messages_together() -> None:
    for batching in (False, True):
        single = router(
            4,
            start=6,
            message_routing_mode=PartitionsRoutingMode.UseSinglePartition,
            batching_enabled=batching,
        )
        assert not isinstance(single, BatchTurnsRouter)
        assert [single.choose(None) for _ in range(3)] == [2, 2, 2]


def test_growing_topics_are_used_wholly() -> None:
    turns = router(2)
    turns.set_partition_count(4)
    assert [turns.choose(None) for _ in range(5)] == [0, 1, 2, 3, 0]
    assert turns.choose("a") == java_string_hash("a") % 4


def test_a_custom_router_decides_for_keyed_messages_too() -> None:
    seen: list[tuple[bytes, str, dict[str, str], int]] = []

    def by_payload(message: Message, count: int) -> int:
        seen.append((message.data(), message.partition_key(), message.properties(), count))
        return int(message.data()) % count

    custom = router(3, message_router=by_payload)
    assert custom.needs_message
    assert custom.choose("k", outgoing(b"5", key="k", properties={"a": "b"})) == 2
    assert seen == [(b"5", "k", {"a": "b"}, 3)]


@pytest.mark.parametrize("answer", [-1, 3, "1", None, 1.0, True])
def test_a_custom_router_must_return_an_index(answer: Any) -> None:
    with pytest.raises(ValueError, match="message_router returned"):
        router(3, message_router=lambda message, count: answer).choose(None, outgoing())


def test_producers_start_at_random_partitions() -> None:
    options = ProducerOptions.from_arguments(topic="t")
    assert len({new_router(options, 1000).choose(None) for _ in range(50)}) > 1
