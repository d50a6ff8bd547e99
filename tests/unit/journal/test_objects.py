from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal import objects
from pulsar_ray.journal.objects import (
    Append,
    CatalogEntry,
    IndexObject,
    JournalObject,
    Place,
    journal_key,
    ledger_of,
    pack_entry,
    pack_index,
    pack_journal,
    pack_piece,
    piece_key,
    place_of,
    unpack_entry,
    unpack_index,
    unpack_journal,
    unpack_piece,
)

JOURNAL = JournalObject(b"n" * 16, "data", 3, (Append("a/b-0", "manifest", 9, b"xyz", ("leave", 4)),))
INDEX = IndexObject(b"n", Place(1, 7), {"a": (1, 0, (), {"manifest": ((), b"abc")})})
ENTRY = CatalogEntry(b"n", "owner", "p", "s", 4, b"")
CASES = [
    (pack_journal, unpack_journal, JOURNAL),
    (pack_index, unpack_index, INDEX),
    (pack_entry, unpack_entry, ENTRY),
    (pack_piece, unpack_piece, b"bytes of a log"),
]


@pytest.mark.parametrize(("pack", "unpack", "item"), CASES)
def test_an_object_is_read_as_it_was_written(
    pack: Callable[[Any], bytes], unpack: Callable[[str, bytes], Any], item: Any
) -> None:
    assert unpack("k", pack(item)) == item


@pytest.mark.parametrize(("pack", "unpack", "item"), CASES)
def test_flipped_bits_and_cut_ends_are_found(
    pack: Callable[[Any], bytes], unpack: Callable[[str, bytes], Any], item: Any
) -> None:
    stored = pack(item)
    for at in range(len(stored)):
        flipped = bytearray(stored)
        flipped[at] ^= 4
        with pytest.raises(JournalDamaged, match="name"):
            unpack("name", bytes(flipped))
        with pytest.raises(JournalDamaged, match="name"):
            unpack("name", stored[:at])


def test_an_object_of_another_kind_is_refused() -> None:
    with pytest.raises(JournalDamaged, match="kind catalog"):
        unpack_entry("k", pack_piece(b""))


def test_the_bytes_of_version_1() -> None:
    assert pack_piece(b"ab").hex() == "50524a310105c4026162f010e4ef12f4bf8d"


def test_an_object_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "MAX_OBJECT_BYTES", 100)
    with pytest.raises(ValueError, match="larger"):
        pack_piece(bytes(200))


def test_names_sort_as_their_numbers_do() -> None:
    places = [Place(1, 2), Place(1, 10), Place(2, 0), Place(10, 0)]
    keys = [journal_key("s", place) for place in places]
    assert keys == sorted(keys)
    assert [place_of(key) for key in keys] == places


def test_a_partitions_name_is_one_part_of_a_piece_s_name() -> None:
    key = piece_key("persistent://public/default/../x", "12-0", 0, 8)
    assert key.count("/") == 3


@pytest.mark.parametrize(("file", "ledger"), [("12-0", 12), ("manifest", None), ("cursor-1", None)])
def test_logs_are_known_by_their_names(file: str, ledger: int | None) -> None:
    assert ledger_of(file) == ledger
