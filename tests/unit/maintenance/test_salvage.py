"""What an ended store has beyond its journal is found, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_ray.broker.serving.shipping_link import ASYNC
from pulsar_ray.errors import NotAllowedError, NotOurDataDirectory
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.maintenance.salvage import Unshipped, find_unshipped, unshipped_messages
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from tests.stored_blocks import IDENTITY
from tests.unit.journal.test_store_journal import Partition, homes, started, taken_over, until, url

__all__ = ["homes", "url"]


@pytest.fixture
def left(homes: tuple[Path, Path], url: str) -> Path:
    """The directory of a store that shipped three messages, and confirmed two more."""

    async def ship() -> None:
        journal = await asyncio.to_thread(started, homes[0], url)
        partition = Partition(homes[0], ASYNC)
        partition.publish(0, 1)
        await until(lambda: journal.status()["partitions"] == 1)
        partition.publish(2)
        partition.link.flush()
        await until(lambda: partition.link._shipped == partition.link._turn)
        await asyncio.to_thread(journal.stop)
        partition.publish(3)
        partition.publish(4)
        assert partition.confirmed == [0, 1, 2, 3, 4]
        partition.die()

    asyncio.run(ship())
    write_identity(homes[0], StoreIdentity("store-a"))
    return homes[0]


def sequences(found: Unshipped) -> list[int]:
    left_out: list[int] = []
    found_ids = [
        message.decoded.header.first_sequence_id for message in unshipped_messages(found, left_out.append)
    ]
    assert not left_out
    return found_ids


def test_what_was_confirmed_and_not_shipped_is_found(left: Path, homes: tuple[Path, Path], url: str) -> None:
    taken_over(homes[1], url)
    before = {path: path.read_bytes() for path in left.rglob("*") if path.is_file()}
    (found,) = find_unshipped(left, open_object_store(url))
    ledger = IDENTITY.number << 31
    assert (found.topic, found.messages, found.damage) == (IDENTITY.topic, 2, "")
    assert (found.first_id, found.last_id) == (f"{ledger}:3", f"{ledger}:4")
    assert sequences(found) == [3, 4]
    assert before == {path: path.read_bytes() for path in left.rglob("*") if path.is_file()}


def test_a_partition_that_was_never_shipped_is_found_whole(
    left: Path, homes: tuple[Path, Path], url: str
) -> None:
    taken_over(homes[1], url)
    (left / "p" / "7").rename(left / "p" / "8")  # as one that the journal does not know
    (found,) = find_unshipped(left, open_object_store(url))
    assert sequences(found) == [0, 1, 2, 3, 4]


def test_what_was_shipped_is_not_found_again(left: Path, homes: tuple[Path, Path], url: str) -> None:
    started(left, url).stop()  # a restart ships the rest
    taken_over(homes[1], url)
    assert find_unshipped(left, open_object_store(url)) == []


def test_a_damaged_end_is_told_beside_what_is_there(left: Path, homes: tuple[Path, Path], url: str) -> None:
    taken_over(homes[1], url)
    manifest = next(iter(sorted((left / "p" / "7").glob("manifest-*"))))
    manifest.write_bytes(b"x" * 100)
    (found,) = find_unshipped(left, open_object_store(url))
    assert (found.messages, "manifest" in found.damage) == (0, True)


def test_a_store_that_may_still_ship_the_rest_is_left_alone(left: Path, url: str) -> None:
    with pytest.raises(NotAllowedError, match="was not ended"):
        find_unshipped(left, open_object_store(url))


def test_another_prefix_and_no_store_are_refused(left: Path, tmp_path: Path) -> None:
    with pytest.raises(NotAllowedError, match="--url"):
        find_unshipped(left, open_object_store((tmp_path / "other").as_uri()))
    with pytest.raises(NotOurDataDirectory):
        find_unshipped(tmp_path, open_object_store((tmp_path / "other").as_uri()))
