"""Read which landed files queries have committed, and delete these."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.errors import LandingMismatch
from pulsar_ray_spark.landing.folder import Folder, find_file_system, open_folder
from pulsar_ray_spark.landing.landing_round import round_of


class SparkCheckpoint:
    """A checkpoint directory of a Structured Streaming query, read only.

    Spark keeps there the offsets of each batch, a commit of each that ended, and of each file source a log of
    the files it has found, with the number of the listing that found them: an offset is such a number.
    """

    def __init__(self, path: str | os.PathLike[str], filesystem: pafs.FileSystem | None = None) -> None:
        self._path = os.fspath(path)
        if filesystem is None:
            self._filesystem, self._inner = find_file_system(self._path)
        else:
            self._filesystem, self._inner = filesystem, self._path.rstrip("/")

    def check(self, folder: Folder) -> None:
        """Raise LandingMismatch if the query has read other folders, and not this one."""
        sources = [self._files_of(source) for source in self._names("sources")]
        read = {where for files in sources for where, _ in files}
        if read and _place(folder.path) not in read:
            raise LandingMismatch(
                f"checkpoint {self._path} is one of a query of {', '.join(sorted(read))}, "
                f"not of {folder.path}: give each query a checkpoint of its own"
            )

    def consumed(self, folder: Folder) -> set[str]:
        """Names of the folder's files whose batches are committed. Raises LandingMismatch as `check`.

        A query that has several sources on the folder has to have committed a file in each.
        """
        self.check(folder)
        offsets, by_source = self._committed_offsets(), []
        for source in self._names("sources"):
            files = self._files_of(source).items()
            listings = {name: listing for (where, name), listing in files if where == _place(folder.path)}
            if listings:
                offset = offsets.get(source, -1)
                by_source.append({name for name, listing in listings.items() if listing <= offset})
        return set.intersection(*by_source) if by_source else set()

    def _committed_offsets(self) -> dict[str, int]:
        """The last committed offset of each file source, by the source's number."""
        batches = [int(name) for name in self._names("commits") if name.isdigit()]
        if not batches:
            return {}
        _version, _metadata, *offsets = self._lines("offsets", str(max(batches)))
        stored = {str(number): json.loads(text) for number, text in enumerate(offsets) if text != "-"}
        # Other kinds of sources have offsets of other forms.
        return {
            number: int(offset["logOffset"])
            for number, offset in stored.items()
            if isinstance(offset, dict) and "logOffset" in offset
        }

    def _files_of(self, source: str) -> dict[tuple[str, str], int]:
        """(folder, name) of each file that a source has found, and its listing."""
        found = {}
        for log in self._names("sources", source):
            if log.removesuffix(".compact").isdigit():
                _version, *lines = self._lines("sources", source, log)
                for entry in map(json.loads, lines):
                    where, _, name = unquote(entry["path"]).rpartition("/")
                    found[_place(where), name] = int(entry["batchId"])
        return found

    def _names(self, *parts: str) -> list[str]:
        selector = pafs.FileSelector("/".join((self._inner, *parts)), allow_not_found=True)
        return sorted(info.base_name for info in self._filesystem.get_file_info(selector))

    def _lines(self, *parts: str) -> list[Any]:
        with self._filesystem.open_input_file("/".join((self._inner, *parts))) as file:
            return bytes(file.read()).decode().splitlines()


def _place(path: str) -> str:
    """A path without its scheme: Spark says s3a:// and file:///, pyarrow s3:// and nothing."""
    return path.partition(":")[2].strip("/") if ":/" in path else path.strip("/")


def clean_landing(
    path: str | os.PathLike[str],
    checkpoints: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    filesystem: pafs.FileSystem | None = None,
) -> int:
    """Delete the landed files that all these queries have read and committed; returns how many.

    `checkpoints` are the checkpoint directories of every query that reads the folder: a file that one of them
    has not committed stays. Files of the newest round stay too, as the landing may be about to finish it.
    Queries and the landing may run meanwhile. `filesystem` is that of the path, and of the checkpoints.

    Raises InvalidConfiguration without a checkpoint, LandingMismatch for one of another folder.
    """
    given = [checkpoints] if isinstance(checkpoints, str | os.PathLike) else list(checkpoints)
    if not given:
        raise InvalidConfiguration("no checkpoint: give those of all queries that read the folder")
    folder = open_folder(path, filesystem)
    consumed = [SparkCheckpoint(each, filesystem).consumed(folder) for each in given]
    rounds = {name: number for name in folder.names() if (number := round_of(name)) is not None}
    newest = max(rounds.values(), default=0)
    deleted = [
        name for name, number in rounds.items() if number < newest and all(name in c for c in consumed)
    ]
    for name in deleted:
        folder.delete(name)
    return len(deleted)
