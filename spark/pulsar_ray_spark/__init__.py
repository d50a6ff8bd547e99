"""Topics as Spark DataFrames and streams, through RayDP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pulsar_ray_spark.lazy_modules import import_lazily

if TYPE_CHECKING:
    from pulsar_ray.data.planning.plan import AtSubscription, AtTime
    from pulsar_ray_spark.handover import release, releasing
    from pulsar_ray_spark.landing.checkpoint import clean_landing
    from pulsar_ray_spark.landing.land import drop_landing, land
    from pulsar_ray_spark.landing.landing import Landing
    from pulsar_ray_spark.landing.reading import read_landing
    from pulsar_ray_spark.reading import read
    from pulsar_ray_spark.schema import MESSAGE_SCHEMA
    from pulsar_ray_spark.session import start, stop
    from pulsar_ray_spark.streaming.query import StreamingQuery
    from pulsar_ray_spark.streaming.query_topics import drop_query
    from pulsar_ray_spark.streaming.stream_reader import read_stream
    from pulsar_ray_spark.writing import Written, forget_writes, write

__all__ = [
    "MESSAGE_SCHEMA",
    "AtSubscription",
    "AtTime",
    "Landing",
    "StreamingQuery",
    "Written",
    "clean_landing",
    "drop_landing",
    "drop_query",
    "forget_writes",
    "land",
    "read",
    "read_landing",
    "read_stream",
    "release",
    "releasing",
    "start",
    "stop",
    "write",
]

# Looked up when asked for: pyspark costs a second to import.
_MODULES = {
    "AtSubscription": "pulsar_ray.data.planning.plan",
    "AtTime": "pulsar_ray.data.planning.plan",
    "Landing": "pulsar_ray_spark.landing.landing",
    "MESSAGE_SCHEMA": "pulsar_ray_spark.schema",
    "StreamingQuery": "pulsar_ray_spark.streaming.query",
    "Written": "pulsar_ray_spark.writing",
    "clean_landing": "pulsar_ray_spark.landing.checkpoint",
    "drop_landing": "pulsar_ray_spark.landing.land",
    "drop_query": "pulsar_ray_spark.streaming.query_topics",
    "forget_writes": "pulsar_ray_spark.writing",
    "land": "pulsar_ray_spark.landing.land",
    "read": "pulsar_ray_spark.reading",
    "read_landing": "pulsar_ray_spark.landing.reading",
    "read_stream": "pulsar_ray_spark.streaming.stream_reader",
    "release": "pulsar_ray_spark.handover",
    "releasing": "pulsar_ray_spark.handover",
    "start": "pulsar_ray_spark.session",
    "stop": "pulsar_ray_spark.session",
    "write": "pulsar_ray_spark.writing",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_lazily(_MODULES[name]), name)
