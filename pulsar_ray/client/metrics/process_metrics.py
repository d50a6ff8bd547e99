"""Exports the figures of this process's clients through the Ray that it is on."""

from __future__ import annotations

import logging
import os
import threading
from typing import ClassVar

from pulsar_ray.client.metrics.client_figures import ClientFigures
from pulsar_ray.transport.ray_metrics import RayMetrics

logger = logging.getLogger(__name__)

PERIOD_S = 5.0


class ProcessMetrics:
    """One for each process: its clients' figures are summed up, and exported once a period.

    From the first client on that asks for it until the process ends.
    """

    _of_process: ClassVar[tuple[int, ProcessMetrics] | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.figures = ClientFigures()
        self._ray = RayMetrics()
        threading.Thread(target=self._run, name="pulsar-ray-metrics", daemon=True).start()

    @classmethod
    def get(cls) -> ProcessMetrics:
        """Return this process's; a fork begins anew."""
        with cls._lock:
            known = cls._of_process
            if known is None or known[0] != os.getpid():
                known = cls._of_process = (os.getpid(), cls())
            return known[1]

    def _run(self) -> None:
        ended = threading.Event()
        while not ended.wait(PERIOD_S):
            try:
                self._ray.export(self.figures.collect())
            except Exception as error:  # noqa: BLE001 - a program goes on without metrics, say after `ray.shutdown()`
                logger.debug("the metrics of this process are not exported: %s", error)
