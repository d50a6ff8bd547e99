"""Delete landed files behind the queries that have read them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow.fs as pafs

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.landing.checkpoint import SparkCheckpoint
from pulsar_ray_spark.landing.folder import open_folder
from pulsar_ray_spark.landing.landing_round import round_of


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
