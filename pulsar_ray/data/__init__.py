"""Ranges of topics, read in bulk beside the data: as Ray Datasets, and for Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_ray.data.dataset_reading import read as read
    from pulsar_ray.data.dataset_reading import release as release
    from pulsar_ray.data.dataset_writing import write as write
    from pulsar_ray.data.plan import AtSubscription as AtSubscription
    from pulsar_ray.data.plan import AtTime as AtTime
    from pulsar_ray.data.table_stream import TableStream as TableStream
    from pulsar_ray.data.table_stream import batches as batches

# Looked up when asked for: actors import parts of this package, and must not pay for Ray Data.
_MODULES = {
    "AtSubscription": "plan",
    "AtTime": "plan",
    "TableStream": "table_stream",
    "batches": "table_stream",
    "read": "dataset_reading",
    "release": "dataset_reading",
    "write": "dataset_writing",
}

__all__ = ["AtSubscription", "AtTime", "TableStream", "batches", "read", "release", "write"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
