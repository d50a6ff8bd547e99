"""Folders that files are landed in: on this machine, or in an object store.

A file is there whole or not at all, whatever dies: on a file system it is renamed once it is on the disk, in
an object store it is uploaded as one object, which nobody sees before its end.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid
from pathlib import Path
from typing import Protocol

import pyarrow.fs as pafs

from pulsar_ray.errors import InvalidConfiguration

# Spark and pyarrow skip files and folders whose names begin so.
_HIDDEN = "_landing"
_DESCRIPTION = f"{_HIDDEN}.json"


class Folder(Protocol):
    """A place for landed files; picklable, for the tasks that write them."""

    @property
    def path(self) -> str:
        """The path as messages and stored identities name it."""

    def begin(self) -> None:
        """Make the folder, and remove files that a crash left half written."""

    def scratch(self) -> Path:
        """A new path on this machine for a file that is written, for `place`."""

    def place(self, scratch: Path, name: str, time_ms: int) -> None:
        """Have a written file appear under its name, whole and durable; replaces the same."""

    def has(self, name: str) -> bool:
        """Whether a file of this name is there."""

    def names(self) -> list[str]:
        """Names of the files that are there."""

    def delete(self, name: str) -> None:
        """Delete a file, which may be gone already."""

    def description(self) -> str | None:
        """The text of `describe`, None if it was never called."""

    def describe(self, text: str) -> None:
        """Leave a text beside the files, which nobody takes for one of them."""


def open_folder(path: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None) -> Folder:
    """Open the folder of a local path or URI, or of a path on `filesystem`.

    Raises InvalidConfiguration for a path that neither is.
    """
    text = os.fspath(path)
    if filesystem is not None:
        return ObjectFolder(filesystem, text.rstrip("/"), text)
    found, inner = find_file_system(text)
    return LocalFolder(inner) if isinstance(found, pafs.LocalFileSystem) else ObjectFolder(found, inner, text)


def find_file_system(path: str) -> tuple[pafs.FileSystem, str]:
    """Find the file system of a local path or URI, and the path there.

    Raises InvalidConfiguration.
    """
    if "://" not in path:
        return pafs.LocalFileSystem(), os.path.abspath(path)
    uri = "s3" + path[3:] if path.startswith("s3a://") else path  # as Hadoop calls it
    try:
        found, inner = pafs.FileSystem.from_uri(uri)
    except (ValueError, OSError, NotImplementedError) as error:
        raise InvalidConfiguration(
            f"path={path!r} leads to no file system ({error}): give a local path, a URI that pyarrow knows "
            "(s3://, gs://, hdfs://), or a path with filesystem="
        ) from error
    return found, inner


class LocalFolder:
    """A folder of a file system, which several nodes may share."""

    def __init__(self, path: str) -> None:
        self._folder = Path(path)
        self._half_written = self._folder / _HIDDEN

    @property
    def path(self) -> str:
        return str(self._folder)

    def begin(self) -> None:
        self._half_written.mkdir(parents=True, exist_ok=True)
        for left in self._half_written.iterdir():
            left.unlink(missing_ok=True)

    def scratch(self) -> Path:
        return self._half_written / uuid.uuid4().hex

    def place(self, scratch: Path, name: str, time_ms: int) -> None:
        os.utime(scratch, ns=(time_ms * 1_000_000, time_ms * 1_000_000))
        _sync(scratch)
        scratch.rename(self._folder / name)
        _sync(self._folder)

    def has(self, name: str) -> bool:
        return (self._folder / name).exists()

    def names(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [entry.name for entry in os.scandir(self._folder) if entry.is_file()]
        return []

    def delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def description(self) -> str | None:
        with contextlib.suppress(FileNotFoundError):
            return (self._folder / _DESCRIPTION).read_text()
        return None

    def describe(self, text: str) -> None:
        scratch = self.scratch()
        scratch.write_text(text)
        _sync(scratch)
        scratch.rename(self._folder / _DESCRIPTION)
        _sync(self._folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectFolder:
    """Objects below a path of a store, as far as pyarrow knows it."""

    def __init__(self, filesystem: pafs.FileSystem, inner: str, path: str) -> None:
        self._filesystem = filesystem
        self._inner = inner
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def begin(self) -> None:
        # Real object stores have no folders; other file systems of pyarrow want them.
        self._filesystem.create_dir(self._inner, recursive=True)

    def scratch(self) -> Path:
        return Path(tempfile.gettempdir()) / f"{_HIDDEN}-{uuid.uuid4().hex}"

    def place(self, scratch: Path, name: str, time_ms: int) -> None:
        # Not by a stream of Python's, which would publish a part of the file if it fails in the middle.
        pafs.copy_files(
            str(scratch),
            self._at(name),
            source_filesystem=pafs.LocalFileSystem(),
            destination_filesystem=self._filesystem,
        )
        scratch.unlink()

    def has(self, name: str) -> bool:
        found = self._filesystem.get_file_info(self._at(name))
        return bool(found.type == pafs.FileType.File)

    def names(self) -> list[str]:
        selector = pafs.FileSelector(self._inner, allow_not_found=True)
        found = self._filesystem.get_file_info(selector)
        return [each.base_name for each in found if each.type == pafs.FileType.File]

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self._at(name))

    def description(self) -> str | None:
        if not self.has(_DESCRIPTION):
            return None
        with self._filesystem.open_input_file(self._at(_DESCRIPTION)) as file:
            return bytes(file.read()).decode()

    def describe(self, text: str) -> None:
        scratch = self.scratch()
        scratch.write_text(text)
        self.place(scratch, _DESCRIPTION, 0)

    def _at(self, name: str) -> str:
        return f"{self._inner}/{name}"
