"""A stay on the Ray of an embedded broker is over once the process is on another Ray, whatever its job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pulsar_ray.errors import BrokerGone, PulsarException
from pulsar_ray.launch.embedded import ClientMark, EmbeddedRecord, prepare_run_directory
from pulsar_ray.launch.rays import ray_stay
from pulsar_ray.launch.rays.ray_stay import RayStay

JOB = ray.JobID.from_int(2)


class ToldCluster:
    def __init__(self) -> None:
        self.told: list[PulsarException] = []

    def gone(self, error: PulsarException) -> None:
        self.told.append(error)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What Ray says of this process's connection."""
    worker = SimpleNamespace(
        connected=True, gcs_client=SimpleNamespace(address="192.0.2.1:1"), current_job_id=JOB
    )
    monkeypatch.setattr(ray._private.worker, "global_worker", worker)
    yield worker
    worker.connected = False


def test_another_ray_is_not_left_for_a_broker_that_has_gone(
    worker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []

    def leave(wait_s: float) -> bool:
        left.append(wait_s)
        return True

    monkeypatch.setattr(ray_stay, "leave_ray", leave)
    monkeypatch.setattr(RayStay, "_look", lambda _: None)
    prepare_run_directory(tmp_path)
    record = EmbeddedRecord("192.0.2.1:1", os.getpid(), 0, "", "")
    stay, cluster = RayStay(tmp_path, record, ClientMark(tmp_path)), ToldCluster()
    stay.add(cluster)  # type: ignore[arg-type]
    worker.gcs_client.address = "192.0.2.2:1"  # where it is the same job by chance
    stay.end_unless_served()
    assert [type(error) for error in cluster.told] == [BrokerGone]
    assert left == []
