"""Whether a partition's disk still has room to publish."""

from __future__ import annotations

import shutil
from pathlib import Path

from pulsar_ray.config import Settings


class DiskSpaceWatch:
    """`probe` asks the disk, on the disk thread; `is_low` is what it said last."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self.is_low = False
        self.probe()

    def probe(self) -> None:
        """Look again.

        Publishing stops below the low-water mark and goes on above it; acks and trimming never stop.
        """
        usage = shutil.disk_usage(self._directory)
        self.is_low = usage.free < self._settings.low_water_mark_bytes(usage.total)
