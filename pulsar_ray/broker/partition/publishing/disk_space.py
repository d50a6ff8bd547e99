"""Whether a partition's disk has room to publish."""

from __future__ import annotations

import shutil
from pathlib import Path

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.errors import DiskSpaceLow


class DiskSpaceProbe:
    """Asks the disk, on the disk thread."""

    def __init__(self, directory: Path, policies: PartitionPolicies) -> None:
        self._directory = directory
        self._policies = policies

    def refusal(self) -> DiskSpaceLow | None:
        """Return the refusal of blocks while the disk is below its low-water mark.

        Publishing stops below the mark and goes on above it; acknowledging and trimming never stop.
        """
        usage = shutil.disk_usage(self._directory)
        mark = self._policies.low_water_mark_bytes(usage.total)
        if usage.free >= mark:
            return None
        return DiskSpaceLow(
            f"the disk of {self._directory} has {usage.free:,} bytes free, below its low-water mark of "
            f"{mark:,}: free space, or lower disk_low_water_mark_bytes and restart the broker"
        )
