"""Whether a partition's disk still has room to publish."""

from __future__ import annotations

import shutil
from pathlib import Path

from pulsar_ray.config import Settings
from pulsar_ray.errors import DiskSpaceLow


class DiskSpaceWatch:
    """`probe` asks the disk, on the disk thread; `refusal` is what follows from what it said last."""

    def __init__(self, directory: Path, settings: Settings) -> None:
        self._directory = directory
        self._settings = settings
        self.refusal: DiskSpaceLow | None = None
        self.probe()

    @property
    def is_low(self) -> bool:
        """Whether nothing can be published now."""
        return self.refusal is not None

    def probe(self) -> None:
        """Look again.

        Publishing stops below the low-water mark and goes on above it; acks and trimming never stop.
        """
        usage = shutil.disk_usage(self._directory)
        mark = self._settings.low_water_mark_bytes(usage.total)
        self.refusal = None
        if usage.free < mark:
            self.refusal = DiskSpaceLow(
                f"the disk of {self._directory} has {usage.free:,} bytes free, below its low-water mark of "
                f"{mark:,}: free space, or lower disk_low_water_mark_bytes and restart the broker"
            )
