"""Reading messages back page by page, past damage, over a real log."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.broker.partition import message_pages
from pulsar_ray.broker.partition.message_pages import read_page
from pulsar_ray.config import Settings
from pulsar_ray.format.block import encode_block, parse_block_header
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.managed_ledger.log.partition_directories import TopicIdentity
from pulsar_ray.model.message_id import EARLIEST, Position

TOPIC = "persistent://public/default/__change_events-partition-1"


def opened(directory: Path) -> ManagedLedger:
    return ManagedLedger.open(
        directory / "p" / "5", TopicIdentity(5, TOPIC, 1), Settings(data_dir=str(directory)), 1000
    )


def append(ledger: ManagedLedger, *values: bytes, rows: int = 1) -> None:
    """Store each value in a frame of its own."""
    for value in values:
        seq = max(ledger.incarnations.last_entry_seq(1) + 1, 0)
        parts = encode_block(
            value,
            incarnation=1,
            entry_seq=seq,
            first_sequence_id=0,
            last_sequence_id=0,
            publish_time_ms=7,
            message_count=rows,
        )
        block = b"".join(map(bytes, parts))
        commit = ledger.begin_append([(parse_block_header(block), (block,))], 1000)
        commit.run()
        ledger.show(ledger.finish_append(commit).end)


def all_pages(ledger: ManagedLedger) -> list[list[dict[str, Any]]]:
    pages = []
    behind = EARLIEST
    while page := read_page(ledger.segments(), ledger.index_points(), behind):
        pages.append(page)
        behind = Position(*page[-1]["position"])
    return pages


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_pages, "MAX_PAGE_MESSAGES", 3)


def test_all_messages_come_once_and_in_order_over_several_ledgers(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert read_page(ledger.segments(), ledger.index_points(), EARLIEST) == []
    append(ledger, *[b"%d" % number for number in range(5)])
    ledger.close()
    ledger = opened(tmp_path)
    append(ledger, *[b"%d" % number for number in range(5, 9)])
    pages = all_pages(ledger)
    assert [len(page) for page in pages] == [3, 3, 3]
    records = list(chain.from_iterable(pages))
    assert [record["value"] for record in records] == [b"%d" % number for number in range(9)]
    positions = [record["position"] for record in records]
    assert positions == sorted(positions)
    assert len({ledger_id for ledger_id, _ in positions}) == 2
    ledger.close()


@pytest.mark.parametrize("spoilt", ["frame", "block", "tail"])
def test_damage_is_one_record_with_its_place_and_the_rest_comes(tmp_path: Path, spoilt: str) -> None:
    ledger = opened(tmp_path)
    append(ledger, *[b"value-%d" % number for number in range(6)])
    (segment,) = ledger.segments()
    content = bytearray(Path(segment.path).read_bytes())
    value = content.index(b"value-5" if spoilt == "tail" else b"value-2")
    # Behind a frame's header, of 80 bytes, a block's header of 72 stands before the value.
    content[value - (100 if spoilt == "frame" else 0)] ^= 0xFF
    Path(segment.path).write_bytes(content)
    records = list(chain.from_iterable(all_pages(ledger)))
    lost = 5 if spoilt == "tail" else 2
    assert [record["value"] for record in records] == [
        b"" if number == lost else b"value-%d" % number for number in range(6)
    ]
    assert [record["position"][1] for record in records] == list(range(6))
    assert str(segment.path) in records[lost]["problem"]
    assert all(record["problem"] == "" for record in records if record is not records[lost])
    ledger.close()


def test_a_batch_is_a_record_with_a_problem(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    append(ledger, b"foreign", rows=2)
    append(ledger, b"ours")
    foreign, ours = read_page(ledger.segments(), ledger.index_points(), EARLIEST)
    assert "no single uncompressed message" in foreign["problem"]
    assert (ours["value"], ours["problem"]) == (b"ours", "")
    ledger.close()
