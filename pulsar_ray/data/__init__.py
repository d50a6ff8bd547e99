"""Ranges of topics, read in bulk beside the data: as Ray Datasets, and for Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_ray.data.failing_actors import set_work_timeout as set_work_timeout
    from pulsar_ray.data.planning.plan import AtSubscription as AtSubscription
    from pulsar_ray.data.planning.plan import AtTime as AtTime
    from pulsar_ray.data.reading.dataset_reading import read as read
    from pulsar_ray.data.reading.dataset_reading import release as release
    from pulsar_ray.data.reading.table_stream import TableStream as TableStream
    from pulsar_ray.data.reading.table_stream import batches as batches
    from pulsar_ray.data.writing.dataset_writing import write as write

# Looked up when asked for: actors import parts of this package, and must not pay for Ray Data.
_MODULES = {
    "AtSubscription": "planning.plan",
    "AtTime": "planning.plan",
    "TableStream": "reading.table_stream",
    "batches": "reading.table_stream",
    "read": "reading.dataset_reading",
    "release": "reading.dataset_reading",
    "set_work_timeout": "failing_actors",
    "write": "writing.dataset_writing",
}

__all__ = [
    "AtSubscription",
    "AtTime",
    "TableStream",
    "batches",
    "read",
    "release",
    "set_work_timeout",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
