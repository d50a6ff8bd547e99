"""Progress of a query, as Spark tells it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from pulsar_ray_spark.streaming.micro_batches import BatchRun
from pulsar_ray_spark.streaming.planned_batch import BEGINNING, Place, QueryIdentity


def describe_progress(
    identity: QueryIdentity, run_id: str, done: BatchRun, began_ms: int, former_ms: int | None, now_ms: int
) -> dict[str, Any]:
    """Describe a batch as Spark's `lastProgress` does.

    `began_ms` is the time of the trigger, `former_ms` of the one before. Rates are of rows per second: in
    since the former trigger, and processed while the batch ran.
    """
    took_ms = now_ms - began_ms
    rates = {
        "inputRowsPerSecond": _rate(done.rows, began_ms - former_ms) if former_ms is not None else 0.0,
        "processedRowsPerSecond": _rate(done.rows, took_ms),
    }
    starts = {name: first for name, (first, _) in done.batch.ranges.items()}
    return {
        "id": identity.query_id,
        "runId": run_id,
        "name": identity.name,
        "timestamp": _timestamp(began_ms),
        "batchId": done.batch.number,
        "numInputRows": done.rows,
        **rates,
        "durationMs": {**done.durations_ms, "triggerExecution": took_ms},
        "stateOperators": [],
        "sources": [
            {
                "description": f"Topics[{', '.join(identity.topics)}]",
                "startOffset": _offsets({**done.batch.places, **starts}),
                "endOffset": _offsets({**done.batch.places, **done.batch.ends}),
                "latestOffset": _offsets(done.latest),
                "numInputRows": done.rows,
                **rates,
            }
        ],
        "sink": {"description": "ForeachBatch", "numOutputRows": -1},
    }


def _rate(rows: int, took_ms: int) -> float:
    return rows * 1000 / max(took_ms, 1)


def _offsets(places: Mapping[str, Place]) -> dict[str, str]:
    return {name: "earliest" if place == BEGINNING else str(place) for name, place in sorted(places.items())}


def _timestamp(time_ms: int) -> str:
    moment = datetime.fromtimestamp(time_ms // 1000, timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
