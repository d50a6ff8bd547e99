"""Which Ray this process is connected to, and as which of its jobs."""

from __future__ import annotations

from typing import Any

import ray


def ray_job() -> str:
    """The name of this process's connection to Ray; "" if it has none.

    Each `ray.init` makes another one.

    The number of the job alone is not enough: every Ray counts from one.
    """
    worker: Any = ray._private.worker.global_worker
    if not worker.connected:
        return ""
    address = getattr(getattr(worker, "gcs_client", None), "address", "")
    return f"{address} {worker.current_job_id.hex()}"
