"""Makes an empty data directory a store of all that others have shipped."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import DataDirectoryInUse, JournalDamaged, NotAllowedError, RemoteStoreRefused
from pulsar_ray.journal.store_journal import StoreJournal
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers, read_identities
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
from pulsar_ray.managed_ledger.store.store_identity import read_identity
from pulsar_ray.model.topic_name import TopicName, is_change_log

READY_S = 60.0
WATCHED_S = 3.0


class Restored(NamedTuple):
    """Counts of all that came back."""

    stores: int
    partitions: int


def restore_from(
    url: str,
    data_dir: Path,
    *,
    takes_over: bool = False,
    accepts_loss: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Seal all stores with a journal at `url`, and restore them into a directory.

    It has to be empty. Partitions are as of the last object that each store has shipped; the stores never
    serve again. If it is broken off, it may be called again with the same directory. The catalog of topics is
    not made here.

    With `accepts_loss` partitions are left out whose objects are missing or damaged.

    Raises DataDirectoryInUse for a directory that has something else, NotAllowedError if a store is seen to
    ship and `takes_over` is false, RemoteStoreRefused if there is no journal, JournalDamaged if objects are
    missing or damaged, and what StoreJournal raises.
    """
    identity = read_identity(data_dir)
    if identity is not None and (identity.cluster_id or identity.catalog_store_id):
        raise DataDirectoryInUse(f"{data_dir} has a store already: give an empty directory")
    if identity is None and partition_numbers(data_dir / "p"):
        raise DataDirectoryInUse(f"{data_dir} has partitions already: give an empty directory")
    store = StoreDirectory.open(data_dir, address="a restore", wait_s=0.0, session="", create=True)
    try:
        journal = StoreJournal(data_dir, store.store_id, url)
        try:
            journal.wait_ready(READY_S)
            return _restore(journal, store, data_dir, note, takes_over=takes_over, accepts_loss=accepts_loss)
        finally:
            journal.stop()
    finally:
        store.close()


def _restore(
    journal: StoreJournal,
    store: StoreDirectory,
    data_dir: Path,
    note: Callable[[str], None],
    *,
    takes_over: bool,
    accepts_loss: bool,
) -> Restored:
    others = [each for each in journal.stores() if each != store.store_id]
    if not others:
        raise RemoteStoreRefused(f"{journal.url} has no journal of any store: look at the address")
    if not takes_over:
        note("looking whether somebody ships there")
        _refuse_living(journal, others)
    wanted: list[str] = []
    for number, other in enumerate(others, 1):
        note(f"ending store {number} of {len(others)}")
        wanted += journal.seal(other)
    note(f"restoring {len(wanted)} partitions")
    try:
        journal.adopt(wanted)
    except JournalDamaged as error:
        if not accepts_loss:
            raise JournalDamaged(
                f"{error.text}. The same command goes on then; with --accept-loss it leaves out partitions "
                "that cannot be restored"
            ) from error
        note(f"what cannot be restored is left out: {error.text}")
    ledgers = data_dir / "p"
    found = read_identities(ledgers)
    numbers = partition_numbers(ledgers)
    store.change(
        dataclasses.replace(
            store.identity,
            cluster_id=journal.cluster_id()
            or next((each.cluster_id for each in found if each.cluster_id), ""),
            numbers_below=max(numbers, default=0) + 1,
            has_change_logs=any(is_change_log(TopicName.parse(each.name)) for each in found),
        )
    )
    return Restored(len(others), len(numbers))


def _refuse_living(journal: StoreJournal, stores: list[str]) -> None:
    before = journal.ends(stores)
    time.sleep(WATCHED_S)
    moved = [store for store, end in journal.ends(stores).items() if end != before[store]]
    if moved:
        raise NotAllowedError(
            f"store {moved[0]} ships to {journal.url} just now: a cluster lives there. End it, or take over "
            "from it with --take-over"
        )
