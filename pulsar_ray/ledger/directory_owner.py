"""The right to write in a directory: one owner at a time.

Late writes of a former owner count for nothing.

An opener takes the lock (killing whoever holds it), raises the epoch, and only then reads what is there. An
owner writes, syncs, *then* checks the epoch, and only then answers: a check that passes proves that no
successor had read the directory before the write. The protocol's reasons are in ADR 0003.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

from pulsar_ray.errors import CorruptData, Fenced, UnsupportedFormatVersion, WrongNode
from pulsar_ray.format.checksum import checksum
from pulsar_ray.ledger.disk import SYSTEM_DISK, Disk, make_closed, require_local_file_system
from pulsar_ray.ledger.owner_lock import HeldLock, take_lock

_SLOT = struct.Struct("<IIQ")  # magic, version, epoch; a checksum of these follows
_SLOT_CHECKSUM = struct.Struct("<Q")
_SLOT_SIZE = _SLOT.size + _SLOT_CHECKSUM.size
_SLOT_MAGIC = 0x45524C50
_SLOT_VERSION = 1
_SLOT_OFFSETS = (0, 4096)  # a block each, so that a torn write can spoil only the slot being written
_FILE_SIZE = 8192
_EPOCH_IN_NAME = re.compile(r"[a-z]+-(\d+)(?:\.\d+)?\Z")


class DirectoryOwner:
    """The right to write in one directory.

    It is held until `close`, a kill, or a successor's `open`.
    """

    def __init__(
        self,
        path: Path,
        lock: HeldLock,
        epoch: int,
        epoch_map: mmap.mmap,
        watched_offset: int,
        epoch_file: os.stat_result,
    ) -> None:
        self.path = path
        self.epoch = epoch
        self._epoch_file = epoch_file
        self._lock = lock
        self._map = epoch_map
        self._watched = slice(watched_offset, watched_offset + _SLOT_SIZE)
        self._expected = epoch_map[self._watched]
        self._is_closed = False

    @classmethod
    def open(
        cls,
        path: Path,
        create: bool,
        *,
        acquire_lock: Callable[[Path], HeldLock] = take_lock,
        disk: Disk = SYSTEM_DISK,
        least_epoch: int = 0,
    ) -> DirectoryOwner:
        """Become the owner of a directory; the first one's epoch is the least or above.

        Blocks while a former owner is killed and the epoch synced.

        After it returns no former owner's check passes any more. Raises WrongNode when the directory was
        expected (`create` false) and is not there whole, CorruptData when its epoch cannot be read,
        DataDirectoryInUse when the holder of the lock cannot be killed, NetworkFileSystem,
        UnsupportedFormatVersion.
        """
        if create:
            make_closed(path, disk)
        elif not (path / "epoch").is_file():
            raise WrongNode(
                f"{path} should hold existing data but is not there: this is the wrong node or disk"
            )
        require_local_file_system(path)
        lock = acquire_lock(path / "owner.lock")
        try:
            epoch_path = path / "epoch"
            if not epoch_path.exists():
                create_epoch_file(path, epoch_path, disk, least_epoch)
            fd = disk.open(epoch_path, os.O_RDWR)
            try:
                epoch, watched_offset = _raise_epoch(path, epoch_path, fd, disk)
                if os.fstat(fd).st_size < _FILE_SIZE:
                    # It was cut behind a slot that is intact.
                    os.ftruncate(fd, _FILE_SIZE)
                epoch_map = mmap.mmap(fd, _FILE_SIZE, prot=mmap.PROT_READ)
                epoch_file = os.fstat(fd)
            finally:
                disk.close(fd)
            return cls(path, lock, epoch, epoch_map, watched_offset, epoch_file)
        except BaseException:
            lock.release()
            raise

    def check_present(self) -> None:
        """Raise WrongNode if the directory was deleted or replaced; looks at the disk.

        Bytes written to a deleted file are durable for nobody, and no write tells.
        """
        try:
            found = os.stat(self.path / "epoch")
        except FileNotFoundError:
            found = None
        if found is None or not os.path.samestat(found, self._epoch_file):
            raise WrongNode(
                f"{self.path} was deleted or replaced while its partition ran: restore it from a backup, "
                "or delete the topic (force=True); what was sent in the last second or so may be lost"
            )

    def check(self) -> None:
        """Raise Fenced if anybody opened the directory after us.

        Call this after the sync, before the answer.
        """
        # A successor always overwrites the slot that is not ours first, and no slot ever gets an old value
        # back, so one comparison of raw bytes (0.1 us) finds every successor, even one in the middle of its
        # write.
        if self._is_closed or self._map[self._watched] != self._expected:
            raise Fenced(f"{self.path} has a newer owner than epoch {self.epoch}")

    @property
    def is_fenced(self) -> bool:
        return self._is_closed or self._map[self._watched] != self._expected

    def move_to(self, path: Path, disk: Disk = SYSTEM_DISK) -> None:
        """Give the directory its name, durably, once all is in it.

        Raises OSError if something has the name already.
        """
        disk.rename(self.path, path)
        self.path = path
        disk.fsync_dir(path.parent)

    def close(self) -> None:
        """Give the directory up; later checks raise Fenced."""
        if not self._is_closed:
            # The map stays open: another thread may be in the middle of a check.
            self._is_closed = True
            self._lock.release()


def _encode_slot(epoch: int) -> bytes:
    head = _SLOT.pack(_SLOT_MAGIC, _SLOT_VERSION, epoch)
    return head + _SLOT_CHECKSUM.pack(checksum(head))


def _decode_slot(slot: bytes) -> int | None:
    """The epoch in a slot; None if it is damaged. Raises UnsupportedFormatVersion."""
    if len(slot) != _SLOT_SIZE or slot[_SLOT.size :] != _SLOT_CHECKSUM.pack(checksum(slot[: _SLOT.size])):
        return None
    magic, version, epoch = _SLOT.unpack_from(slot)
    if magic != _SLOT_MAGIC:
        return None
    if version != _SLOT_VERSION:
        raise UnsupportedFormatVersion(
            f"epoch file of format version {version}; this build reads {_SLOT_VERSION}"
        )
    return int(epoch)


def read_epoch_slots(path: Path) -> list[int | None]:
    """Read the two slots of an epoch file without owning it.

    None stands for a damaged one. Raises UnsupportedFormatVersion, OSError.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        return _read_slots(fd)
    finally:
        os.close(fd)


def _read_slots(fd: int) -> list[int | None]:
    return [_decode_slot(os.pread(fd, _SLOT_SIZE, offset)) for offset in _SLOT_OFFSETS]


def create_epoch_file(path: Path, epoch_path: Path, disk: Disk, epoch: int = 0) -> None:
    """Put the epoch that owners count on from into both slots.

    The file appears under its name only when it is whole.
    """
    content = bytearray(_FILE_SIZE)
    for offset in _SLOT_OFFSETS:
        content[offset : offset + _SLOT_SIZE] = _encode_slot(epoch)
    temporary = path / f"epoch.{os.getpid()}.new"
    fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        disk.pwrite(fd, content, 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    # link, not rename: were another opener quicker, its file must stay, for somebody may already watch it.
    with contextlib.suppress(FileExistsError):
        epoch_path.hardlink_to(temporary)
    disk.unlink(temporary)
    disk.fsync_dir(path)


def _raise_epoch(path: Path, epoch_path: Path, fd: int, disk: Disk) -> tuple[int, int]:
    """Write the next epoch durably into the older slot.

    Returns the epoch and the offset of the other slot.
    """
    slots = _read_slots(fd)
    if slots[0] is None and slots[1] is None:
        raise CorruptData(str(epoch_path), 0, "neither slot of the epoch file is intact")
    # A bad slot may have held the highest epoch that was in use; the names of the epoch's logs tell.
    named = max(
        (int(match[1]) for match in (_EPOCH_IN_NAME.match(entry.name) for entry in path.iterdir()) if match),
        default=0,
    )
    values = [-1 if slot is None else slot for slot in slots]
    target = 0 if values[0] < values[1] else 1
    epoch = max(*values, named) + 1
    slot = _encode_slot(epoch)
    if disk.pwrite(fd, slot, _SLOT_OFFSETS[target]) != len(slot):
        raise OSError(f"short write to {epoch_path}")
    disk.fdatasync(fd)
    return epoch, _SLOT_OFFSETS[1 - target]
