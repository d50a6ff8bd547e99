"""Rebuilds a subscription's cursor from the intact records of its log."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pulsar_ray.ledger.directory_owner import DirectoryOwner
from pulsar_ray.ledger.owner_lock import take_free_lock
from pulsar_ray.ledger.record_log import RecordLog, salvage_log
from pulsar_ray.managed_ledger.cursor.cursor_directories import cursor_directory
from pulsar_ray.managed_ledger.cursor.cursor_records import (
    CHANGES,
    SNAPSHOT,
    apply_changes,
    check_record_types,
    cursor_from_snapshot,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.cursor.cursor_store import LOG_NAME
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.managed_ledger.cursor.managed_cursor import Subscription as CursorSubscription
from pulsar_ray.managed_ledger.log.manifest.manifest_records import Subscription


def salvaged_cursor(log_directory: Path, number: int, registered: Subscription | None) -> ManagedCursor:
    """Read a cursor past damage in its log.

    Without any record it begins at the subscription's hold.

    Acknowledgments are facts, so each intact record counts. Those that stood in a damaged record alone are
    forgotten: their messages come again. Without a registration the name is "" if the log does not tell it.
    Raises UnsupportedFormatVersion, OSError.
    """
    cursor = ManagedCursor(CursorSubscription(""))
    if registered is not None:
        subscription = CursorSubscription(registered.name, True, registered.properties)
        cursor = ManagedCursor(subscription, registered.hold)
    directory = cursor_directory(log_directory, number)
    records = salvage_log(directory, LOG_NAME) if directory.is_dir() else []
    check_record_types(records, str(directory))
    for kind, payload in records:
        # Intact, and yet none of a cursor: it tells nothing.
        with contextlib.suppress(KeyError, IndexError, TypeError, ValueError, OverflowError):
            if kind == SNAPSHOT:
                found = cursor_from_snapshot(payload)
                if registered is not None and found.subscription.name != registered.name:
                    return cursor
                cursor = found
            elif kind == CHANGES:
                # The record that told of a seek may be lost.
                is_reset = payload["g"] != cursor.generation
                apply_changes(cursor, {**payload, "r": True} if is_reset else payload)
    return cursor


def write_cursor(log_directory: Path, number: int, cursor: ManagedCursor) -> None:
    """Make it the subscription's cursor, durably; nobody may own the directory."""
    directory = cursor_directory(log_directory, number)
    owner = DirectoryOwner.open(directory, create=True, acquire_lock=take_free_lock)
    log = RecordLog(owner, LOG_NAME)
    try:
        log.rewrite([(SNAPSHOT, snapshot_payload(cursor))])
    finally:
        log.close()
        owner.close()
