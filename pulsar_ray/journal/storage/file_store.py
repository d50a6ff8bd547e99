"""A directory that machines share serves as an object store.

Writes are create-only by hard links; files and folders are synced."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from pulsar_ray.errors import RemoteStoreRefused, RemoteStoreUnavailable
from pulsar_ray.journal.storage.object_store import Listed

_UNFINISHED = ".unfinished"
_HIDDEN = "."
"""Names of objects never begin so, as those do of files that others leave.

NFS leaves some for files that are deleted while they are read, and desktops theirs."""
_DEAD_AFTER_S = 3600.0
"""An unfinished object of that age is of a process that died.

A living one would write it anew."""


class FileStore:
    """The `file://` store; a name is a path below its root."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._has_cleared = False

    def create(self, key: str, body: bytes) -> bool:
        """Write and sync a file, and give it its name by a link.

        A link replaces nothing.
        """
        target = self._path(key)
        unfinished = self._root / _UNFINISHED / uuid.uuid4().hex
        try:
            self._make_folder(unfinished.parent)
            self._clear(unfinished.parent)
            self._make_folder(target.parent)
            try:
                with unfinished.open("xb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                os.link(unfinished, target)
            except FileExistsError:
                _sync(target.parent)  # whose link it is may have crashed before it synced
                return False
            finally:
                unfinished.unlink(missing_ok=True)
            _sync(target.parent)
        except PermissionError as error:
            raise RemoteStoreRefused(f"{target}: {error.strerror}") from error
        except OSError as error:
            raise RemoteStoreUnavailable(f"{target}: {error.strerror}") from error
        return True

    def get(self, key: str) -> bytes | None:
        """Return a file's bytes, None if there is none."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RemoteStoreUnavailable(f"{key}: {error.strerror}") from error

    def head(self, key: str) -> int | None:
        """Return a file's length, None if there is none."""
        try:
            return self._path(key).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RemoteStoreUnavailable(f"{key}: {error.strerror}") from error

    def list(self, prefix: str) -> list[str]:
        """Return the sorted names below a folder."""
        failed: list[OSError] = []
        found = [
            (Path(folder) / name).relative_to(self._root).as_posix()
            for folder, _, names in os.walk(self._path(prefix), onerror=failed.append)
            for name in names
            if not name.startswith(_HIDDEN)
        ]
        for error in failed:
            if not isinstance(error, FileNotFoundError):
                raise RemoteStoreUnavailable(f"{prefix}: {error.strerror}") from error
        return sorted(found)

    def measured(self) -> Iterator[Listed]:
        """Yield all files below the root, with their sizes."""
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = Path(folder) / name
                if name.startswith(_HIDDEN) or path.parent.name == _UNFINISHED:
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found = path.stat()
                    yield Listed(path.relative_to(self._root).as_posix(), found.st_size, found.st_mtime)

    def delete(self, keys: tuple[str, ...]) -> None:
        """Delete the files that are there; folders stay, since others may be writing into them."""
        for key in keys:
            try:
                self._path(key).unlink(missing_ok=True)
            except OSError as error:
                raise RemoteStoreUnavailable(f"{key}: {error.strerror}") from error

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.removesuffix("/").split("/")):
            raise RemoteStoreRefused(f"{key!r} is no name of an object")
        return self._root / key

    def _clear(self, folder: Path) -> None:
        """Remove once what dead processes have not finished."""
        if self._has_cleared:
            return
        self._has_cleared = True
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _DEAD_AFTER_S:
                    path.unlink()

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
