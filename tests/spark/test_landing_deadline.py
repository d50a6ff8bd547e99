"""Files of a landing whose tasks never end, on a real Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray
from pyspark.sql import SparkSession

from pulsar_ray.data import failing_actors, set_work_timeout
from pulsar_ray.data.planning.plan import ReadRange, SegmentSlice
from pulsar_ray.errors import Timeout
from pulsar_ray.model.message_id import EARLIEST, LATEST
from pulsar_ray_spark.landing.file_writing import LANDING_COLUMNS, FileJob
from pulsar_ray_spark.landing.folder import LocalFolder
from pulsar_ray_spark.landing.ray_writing import write_on_ray
from tests.stored_messages import single
from tests.stored_segments import write_segment


@pytest.fixture
def timeout(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    """The session is there for its Ray."""
    before = failing_actors.work_timeout_s()
    set_work_timeout(request.param)
    yield
    set_work_timeout(before)


def silent(directory: Path) -> tuple[SegmentSlice, Path]:
    """A segment whose disk does not answer, and the segment as it was."""
    segment, kept = write_segment(directory / "5-0.seg", [[single(b"a")]]), directory / "kept"
    Path(segment.path).rename(kept)
    os.mkfifo(segment.path)  # nobody writes: whoever opens it waits
    return segment, kept


def job_of(segment: SegmentSlice, directory: Path) -> FileJob:
    folder = LocalFolder(str(directory / "landed"))
    folder.begin()
    node = ray.get_runtime_context().get_node_id()
    asked = ReadRange(node, "t", -1, (segment,), EARLIEST, LATEST)
    return FileJob(asked, folder, "a.parquet", LANDING_COLUMNS, 1_700_000_000_000)


@pytest.mark.parametrize("timeout", [1.0], indirect=True)
def test_a_disk_that_does_not_answer_is_a_timeout_that_names_the_file(timeout: None, tmp_path: Path) -> None:
    segment, _ = silent(tmp_path)
    with pytest.raises(Timeout, match=r"wrote a\.parquet took longer than 1 s .* 3 times: .*set_work_"):
        list(write_on_ray([job_of(segment, tmp_path)]))


@pytest.mark.long
@pytest.mark.parametrize("timeout", [10.0], indirect=True)
def test_a_file_is_written_by_another_task_if_one_never_ends(
    timeout: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, kept = silent(tmp_path)
    job, end_task = job_of(segment, tmp_path), ray.cancel
    ended: list[Any] = []

    def mend_and_end(task: Any, *, force: bool) -> None:
        if not ended:
            os.replace(kept, segment.path)
        ended.append(task)
        end_task(task, force=force)

    monkeypatch.setattr(ray, "cancel", mend_and_end)
    assert [each.messages for each in write_on_ray([job])] == [1]
    assert ended
    assert pq.read_table(Path(job.folder.path) / job.name)["value"].to_pylist() == [b"a"]
