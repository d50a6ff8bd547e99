"""Names, paths, checkpoints and clean-up of landed folders, without Ray and Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.message_id import Position
from pulsar_ray_spark import clean_landing, land, read_landing
from pulsar_ray_spark.errors import LandingMismatch, PathNotShared
from pulsar_ray_spark.landing import land as land_module
from pulsar_ray_spark.landing.checkpoint import SparkCheckpoint
from pulsar_ray_spark.landing.folder import open_folder
from pulsar_ray_spark.landing.landing_round import file_name, round_of

FIRST, END = Position(7, 0), Position(9, 12)


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("orders", "public~2Fdefault~2Forders--7.0--9.12--3.parquet"),
        ("persistent://_t/n/a-partition-0", "~5Ft~2Fn~2Fa-partition-0--7.0--9.12--3.parquet"),
        ("größe=%1", "public~2Fdefault~2Fgr~C3~B6~C3~9Fe~3D~251--7.0--9.12--3.parquet"),
    ],
)
def test_names_of_files(topic: str, name: str) -> None:
    assert file_name(topic, FIRST, END, 3) == name
    assert round_of(name) == 3


def test_names_of_long_topics_fit_and_differ() -> None:
    far = Position(1 << 62, 1 << 62)
    names = {file_name("ü" * 200 + end, far, far, 1 << 40) for end in "ab"}
    assert len(names) == 2
    assert max(map(len, names)) < 255
    assert round_of("part-0000.parquet") is None
    assert round_of(file_name("a", FIRST, END, 12) + ".crc") is None


def checkpoint(
    path: Path, folder: Path, listings: dict[str, list[tuple[str, int]]], commits: int, offset: int
) -> Path:
    """A checkpoint as Spark 3.5 writes it: logs of names and listings, and one offset."""
    for log, files in listings.items():
        lines = [
            json.dumps({"path": f"file://{folder}/{name}", "timestamp": 1, "batchId": listing})
            for name, listing in files
        ]
        write(path / "sources" / "0" / log, ["v1", *lines])
        write(path / "sources" / "0" / f".{log}.crc", ["x"])
    for batch in range(commits + 1):
        write(path / "commits" / str(batch), ["v1", "{}"])
    write(path / "offsets" / str(commits), ["v1", "{}", json.dumps({"logOffset": offset}), "-"])
    write(path / "offsets" / str(commits + 1), ["v1", "{}", json.dumps({"logOffset": offset + 1}), "-"])
    return path


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def names_of(numbers: range) -> list[str]:
    return [file_name("t", FIRST, END, number) for number in numbers]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of rounds 1 to 6, and files that no landing wrote."""
    folder = tmp_path / "landed"
    folder.mkdir()
    for name in (*names_of(range(1, 7)), "_landing.json", "README.parquet"):
        (folder / name).write_text("")
    return folder


def test_committed_files_are_consumed(tmp_path: Path, folder: Path) -> None:
    one, two, three, four = names_of(range(1, 5))
    path = checkpoint(
        tmp_path / "c",
        folder,
        # The second listing stands in two logs; the third is of a batch that is not committed.
        {"2.compact": [(one, 0), (two, 1)], "1": [(two, 1)], "3": [(three, 3)], "4": [(four, 4)]},
        commits=5,
        offset=3,
    )
    assert SparkCheckpoint(path).consumed(open_folder(folder)) == {one, two, three}
    assert SparkCheckpoint(tmp_path / "new").consumed(open_folder(folder)) == set()


def test_files_count_as_consumed_once_all_sources_of_a_query_have_committed_them(
    tmp_path: Path, folder: Path
) -> None:
    one, two, three = names_of(range(1, 4))
    path = checkpoint(tmp_path / "c", folder, {"0": [(one, 0), (two, 0), (three, 0)]}, commits=2, offset=0)
    for source, listings in (("1", [(one, 0), (two, 1)]), ("2", [])):
        entries = [
            json.dumps({"path": f"file://{folder}/{name}", "timestamp": 1, "batchId": listing})
            for name, listing in listings
        ]
        write(path / "sources" / source / "0", ["v1", *entries])
    offsets = [json.dumps({"logOffset": 0})] * 2
    write(path / "offsets" / "2", ["v1", "{}", *offsets, "-"])
    assert SparkCheckpoint(path).consumed(open_folder(folder)) == {one}


def test_files_that_all_queries_have_read_are_deleted_but_for_the_newest_round(
    tmp_path: Path, folder: Path
) -> None:
    names = names_of(range(1, 7))
    ahead = checkpoint(tmp_path / "a", folder, {"0": [(name, 0) for name in names]}, commits=0, offset=0)
    behind = checkpoint(tmp_path / "b", folder, {"0": [(name, 0) for name in names[:2]]}, commits=0, offset=0)
    assert clean_landing(folder, [ahead, behind]) == 2
    assert clean_landing(folder, [ahead, behind]) == 0
    assert clean_landing(folder, ahead) == 3
    assert {path.name for path in folder.iterdir()} == {names[-1], "_landing.json", "README.parquet"}
    with pytest.raises(InvalidConfiguration, match="no checkpoint"):
        clean_landing(folder, [])


def test_a_checkpoint_of_another_folder_is_refused(tmp_path: Path, folder: Path) -> None:
    other = checkpoint(tmp_path / "o", tmp_path / "else where", {"0": [("f", 0)]}, commits=0, offset=0)
    with pytest.raises(LandingMismatch, match=r"is one of a query of .*else where, not of .*landed"):
        clean_landing(folder, other)
    assert len(list(folder.iterdir())) == 8


class StubClient:
    """A client of a broker that is there."""

    cluster = None
    is_closed = False

    def __enter__(self) -> StubClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


def test_wrong_arguments_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(land_module, "alive_nodes", lambda: 2)
    client = StubClient()
    monkeypatch.setattr(land_module, "Client", lambda _: client)
    with pytest.raises(PathNotShared, match="the cluster has 2 nodes: give a path that all nodes share"):
        land("t", tmp_path, name="n")
    assert client.is_closed
    for wrong, named in (
        ({"name": "a/b"}, "name='a/b'"),
        ({"name": ""}, "name=''"),
        ({"name": None}, "name=None"),
        ({"interval": 0}, "interval=0"),
        ({"interval": float("inf")}, "interval=inf: give seconds, more than 0 and at most"),
        ({"interval": "5 seconds"}, "interval='5 seconds': give seconds"),
        ({"max_bytes_per_file": "64m"}, "max_bytes_per_file='64m': give bytes"),
        ({"until": "noon"}, "until='noon'"),
        ({"max_bytes_per_file": 0}, "max_bytes_per_file=0"),
        ({"columns": ["age"]}, "columns="),
        ({"start": 5}, "5 is no bound"),
    ):
        with pytest.raises(InvalidConfiguration, match=named):
            land("t", tmp_path, **{"name": "n", **wrong})  # type: ignore[arg-type]
    for files in (0, "1", True):
        with pytest.raises(InvalidConfiguration, match=f"max_files_per_trigger={files!r}: give an int"):
            read_landing(cast("Any", None), tmp_path, max_files_per_trigger=files)  # type: ignore[arg-type]
