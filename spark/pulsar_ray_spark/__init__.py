"""Topics as Spark DataFrames and streams, through RayDP."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_ray_spark.handover import release, releasing
    from pulsar_ray_spark.plan import AtSubscription, AtTime
    from pulsar_ray_spark.reading import read
    from pulsar_ray_spark.schema import MESSAGE_SCHEMA
    from pulsar_ray_spark.session import start, stop

__all__ = ["MESSAGE_SCHEMA", "AtSubscription", "AtTime", "read", "release", "releasing", "start", "stop"]

# Looked up when asked for: the tasks that read blocks import from here too, and pyspark would cost each a
# second.
_MODULES = {
    "AtSubscription": "plan",
    "AtTime": "plan",
    "MESSAGE_SCHEMA": "schema",
    "read": "reading",
    "release": "handover",
    "releasing": "handover",
    "start": "session",
    "stop": "session",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
