"""Checks one partition's directory: epoch, manifest, ledgers, cursors, indexes of delayed messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pulsar_ray.broker.partition.topic_compaction import compacted_segments
from pulsar_ray.broker.subscription.delayed.delayed_tracker import index_directory
from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.format.block import verify_block
from pulsar_ray.journal.store_files import read_former_term, read_term
from pulsar_ray.ledger.directory_owner import read_epoch_slots
from pulsar_ray.ledger.reader import SegmentGone
from pulsar_ray.ledger.segment_file import parse_segment_name
from pulsar_ray.maintenance.damage import Damage, Findings, Kind, Totals, seen_thrice
from pulsar_ray.maintenance.segment_check import Progress, check_segment
from pulsar_ray.managed_ledger.compaction.stored_blocks import BlockReader
from pulsar_ray.managed_ledger.cursor.cursor_directories import (
    cursor_directory,
    subscription_numbers,
)
from pulsar_ray.managed_ledger.cursor.cursor_store import read_cursor
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor
from pulsar_ray.managed_ledger.delayed.delayed_index import verify_index
from pulsar_ray.managed_ledger.log.manifest.manifest import LedgerInfo, Manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_log import NOTHING, ManifestContent, read_manifest
from pulsar_ray.managed_ledger.log.manifest.manifest_records import TopicIdentity
from pulsar_ray.managed_ledger.log.move_note import read_move_note
from pulsar_ray.managed_ledger.log.partition_directories import identity_of_segments
from pulsar_ray.managed_ledger.log.unlisted_segments import take_unlisted
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position


def check_partition(directory: Path, cluster_id: str, progress: Progress) -> Findings:
    """Check a partition's directory, whoever writes in it meanwhile.

    Each look begins with the manifest of its time.
    """

    def look() -> Findings:
        findings = _look(directory, cluster_id, progress)
        # Its topic may be deleted meanwhile.
        return findings if directory.is_dir() else Findings()

    return seen_thrice(look)


def _look(directory: Path, cluster_id: str, progress: Progress) -> Findings:
    findings = Findings(totals=Totals(partitions=1))
    try:
        findings.add(*_check_epoch(directory))
        content = read_manifest(directory)
        if content is None:
            findings.add(*_without_manifest(directory))
            return findings
        take_unlisted(content)
    except CorruptData as error:
        findings.add(Damage(Kind.MANIFEST, error.path, error.text, error.offset, _topic_of(directory)))
        return findings
    except UnsupportedFormatVersion as error:
        findings.add(Damage(Kind.VERSION, str(directory), error.text))
        return findings
    except OSError as error:
        findings.add(Damage(Kind.PARTITION, str(directory), str(error)))
        return findings
    identity = content.manifest.identity
    findings.add(*_strange(directory, identity, cluster_id))
    findings.add(*_damaged_notes(directory, identity))
    cursors = _check_cursors(directory, content.manifest, findings)
    proven = _proven_entries(content, cursors)
    for ledger in content.manifest.ledgers.values():
        findings.merge(_check_ledger(ledger, identity, proven, progress))
    findings.add(*_lost_ledgers(content, proven))
    findings.add(*_damaged_form(directory, content.manifest))
    return findings


def _check_epoch(directory: Path) -> Iterable[Damage]:
    path = directory / "epoch"
    if not path.exists():
        if any(directory.glob("manifest-*")):
            yield Damage(Kind.EPOCH, str(path), "the file is not there")
    elif all(slot is None for slot in read_epoch_slots(path)):
        yield Damage(Kind.EPOCH, str(path), "neither slot of the epoch file is intact")


def _without_manifest(directory: Path) -> Iterable[Damage]:
    if any(parse_segment_name(path.name) for path in directory.iterdir()):
        reason = "there are ledgers but no manifest"
        yield Damage(Kind.MANIFEST, str(directory / "manifest-*"), reason, topic=_topic_of(directory))
    elif subscription_numbers(directory):
        reason = "there are subscriptions but no manifest"
        yield Damage(Kind.MANIFEST, str(directory / "manifest-*"), reason, topic=_topic_of(directory))


def _topic_of(directory: Path) -> str:
    """The partition's name as its segments tell; "" if none does."""
    identity = identity_of_segments(directory)
    return identity.topic if identity else ""


def _strange(directory: Path, identity: TopicIdentity, cluster_id: str) -> Iterable[Damage]:
    """Yield that a directory was made for another partition, or by another cluster."""
    damage = Damage(Kind.PARTITION, str(directory), "", topic=identity.topic)
    if str(identity.number) != directory.name:
        yield replace(damage, reason=f"it holds partition number {identity.number}")
    if identity.cluster_id and cluster_id and identity.cluster_id != cluster_id:
        yield replace(damage, reason=f"it is of cluster {identity.cluster_id}, the store of {cluster_id}")


def _damaged_notes(directory: Path, identity: TopicIdentity) -> Iterable[Damage]:
    """Yield unreadable notes of a partition's moves, and of its terms in the journal."""
    reads: tuple[Callable[[Path], object], ...] = (read_move_note, read_term, read_former_term)
    for read in reads:
        try:
            read(directory)
        except CorruptData as error:
            yield Damage(Kind.NOTE, error.path, error.text, topic=identity.topic)


# --- cursors


def _check_cursors(directory: Path, manifest: Manifest, findings: Findings) -> list[ManagedCursor]:
    """Read the cursors of all durable subscriptions, and the indexes of their delayed messages."""
    cursors = []
    topic = manifest.identity.topic
    for number, subscription in manifest.subscriptions.items():
        if not subscription.is_durable:
            continue
        path = cursor_directory(directory, number)
        damage = Damage(Kind.CURSOR, str(path), "", topic=topic, subscription=subscription.name)
        if not path.exists():
            findings.remarks.append(
                f"{topic}, subscription {subscription.name}: no cursor yet; it begins at its hold"
            )
            continue
        try:
            for each in _check_epoch(path):
                findings.add(replace(each, topic=topic, subscription=subscription.name))
            cursor = read_cursor(path)
            findings.totals = findings.totals.plus(Totals(cursors=1))
            if cursor is None:
                findings.add(replace(damage, reason="the cursor's log is missing"))
            elif cursor.subscription.name != subscription.name:
                reason = f"its log is of subscription {cursor.subscription.name}"
                findings.add(replace(damage, reason=reason))
            else:
                cursors.append(cursor)
            findings.merge(_check_index(index_directory(directory, number), damage))
        except UnsupportedFormatVersion as error:
            findings.add(replace(damage, kind=Kind.VERSION, reason=error.text))
        except CorruptData as error:
            findings.add(replace(damage, path=error.path, offset=error.offset, reason=error.text))
        except OSError as error:
            findings.add(replace(damage, reason=str(error)))
    return cursors


def _check_index(directory: Path, of_cursor: Damage) -> Findings:
    findings = Findings()
    if not directory.is_dir():
        return findings
    findings.totals = Totals(delayed_indexes=1)
    damage = replace(of_cursor, kind=Kind.DELAYED_INDEX, path=str(directory))
    try:
        verify_index(directory)
    except UnsupportedFormatVersion as error:
        findings.add(replace(damage, kind=Kind.VERSION, reason=error.text))
    except CorruptData as error:
        findings.add(replace(damage, path=error.path, offset=error.offset, reason=error.text))
    return findings


# --- ledgers


def _proven_entries(content: ManifestContent, cursors: Iterable[ManagedCursor]) -> dict[int, int]:
    """Return the highest entry of each ledger that somebody was told to be durable.

    A checkpoint says so, and so does every acknowledgment.
    """
    proven: dict[int, int] = {}

    def add(position: Position) -> None:
        if position == LATEST:
            return
        proven[position.ledger_id] = max(proven.get(position.ledger_id, -1), position.entry_id)

    newest = content.newest
    if newest is not NOTHING:
        add(Position(newest.ledger_id, newest.next_entry_id - 1))
    for subscription in content.manifest.subscriptions.values():
        if subscription.is_durable:
            add(subscription.hold)
    for cursor in cursors:
        add(cursor.mark_delete)
        if cursor.deleted:
            add(Position(*cursor.deleted.end))
        for position, _ in cursor.batch_acks():
            add(position)
    return proven


def _check_ledger(
    ledger: LedgerInfo, identity: TopicIdentity, proven: dict[int, int], progress: Progress
) -> Findings:
    findings = Findings(totals=Totals(ledgers=1))
    for segment in ledger.segments:
        is_last = ledger.is_open and segment is ledger.segments[-1]
        known = max(proven.get(ledger.ledger_id, -1), segment.first_entry_id - 1)
        last = known if is_last else segment.last_entry_id
        found, _ = check_segment(segment, identity, last, is_open=is_last, progress=progress)
        findings.merge(found)
    return findings


def _damaged_form(directory: Path, manifest: Manifest) -> Iterable[Damage]:
    """Yield what cannot be read of that which compaction has kept."""
    for segment in compacted_segments(directory, manifest.compacted):
        reason = ""
        try:
            for blocks in BlockReader([segment], EARLIEST, LATEST).read():
                for block in blocks:
                    verify_block(block.data, 0, block.header, segment.path)
        except (CorruptData, SegmentGone) as error:
            reason = error.text
        if reason:
            yield Damage(
                Kind.ENTRIES,
                segment.path,
                f"of what compaction has kept: {reason}",
                topic=manifest.identity.topic,
                ledger_id=segment.ledger_id,
            )


def _lost_ledgers(content: ManifestContent, proven: dict[int, int]) -> Iterable[Damage]:
    """Yield ledgers behind the newest one that the manifest lists, of which entries were acknowledged."""
    manifest = content.manifest
    newest = max([manifest.last_position.ledger_id, *manifest.ledgers, *manifest.deleted])
    for ledger_id, entry_id in sorted(proven.items()):
        if ledger_id > newest and entry_id >= 0:
            yield Damage(
                Kind.ENTRIES,
                str(manifest.directory),
                "the manifest does not know this ledger, of which entries were acknowledged",
                topic=manifest.identity.topic,
                ledger_id=ledger_id,
                first_entry_id=0,
                last_entry_id=entry_id,
            )
