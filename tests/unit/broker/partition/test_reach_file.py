"""The file by which clients prove that they read a partition's segments."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from pulsar_ray.broker.partition.reach_file import ReachFile
from pulsar_ray.testing.faulty_disk import FaultyDisk


def test_each_start_writes_a_value_of_its_own(tmp_path: Path) -> None:
    proofs = []
    for _ in range(2):
        reach = ReachFile(tmp_path, FaultyDisk())
        assert reach.proof == ("", "")
        reach.write()
        proofs.append(reach.proof)
        reach.write()
        assert reach.proof == proofs[-1], "once is enough"
    assert proofs[0][0] == proofs[1][0] == str(tmp_path / "reach")
    assert proofs[0][1] != proofs[1][1] == (tmp_path / "reach").read_text()


@pytest.mark.parametrize("call", ["open", "writev", "rename"])
def test_where_the_disk_refuses_nobody_proves_anything_until_it_takes_one(tmp_path: Path, call: str) -> None:
    disk = FaultyDisk()
    ReachFile(tmp_path, disk).write()
    former = (tmp_path / "reach").read_text()
    reach = ReachFile(tmp_path, disk)
    disk.fail(call, errno.ENOSPC)
    reach.write()
    assert reach.proof == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["reach"]
    assert (tmp_path / "reach").read_text() == former
    reach.write()
    assert reach.is_written
    assert reach.proof[1] == (tmp_path / "reach").read_text() != former
