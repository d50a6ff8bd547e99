"""Reasons for which a partition takes no blocks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing import publish_gate
from pulsar_ray.broker.partition.publishing.publish_gate import ClosedBy, DiskSpaceProbe, PublishGate
from pulsar_ray.config import Settings
from pulsar_ray.errors import DiskSpaceLow


def test_a_reason_closes_the_gate_until_it_is_let_go() -> None:
    gate = PublishGate()
    refusal = DiskSpaceLow("full")
    for error in (None, refusal, None, None):
        gate.set(ClosedBy.DISK_SPACE, error)
        assert (gate.refusal, gate.is_closed_by(ClosedBy.DISK_SPACE)) == (error, error is not None)


def test_a_disk_refuses_blocks_below_its_low_water_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probe = DiskSpaceProbe(tmp_path, PartitionPolicies(Settings(disk_low_water_mark_bytes=100)))
    for free, is_refused in ((99, True), (100, False)):
        usage = SimpleNamespace(total=1000, free=free)
        monkeypatch.setattr(publish_gate, "shutil", SimpleNamespace(disk_usage=lambda _, usage=usage: usage))
        assert (probe.refusal() is not None) is is_refused
