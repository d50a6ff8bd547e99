"""Lines of text files as events with times, for the pipelines to work on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pulsar_ray.client.client import Client
from pulsar_ray_spark.demo.text import TextFile

FIRST_MS = 1_700_006_400_000
LINE_MS = 1_000
PAUSE_MS = 300_000
"""An empty line stands for a pause: who writes thinks."""
_LATE_EVERY = 97
_LINES_PER_SEND = 4096


class TextEvent(NamedTuple):
    """A line of a module's source, and when it was written."""

    module: str
    line: bytes
    time_ms: int


def text_events(files: Sequence[TextFile]) -> Iterator[TextEvent]:
    """Yield the lines that are not empty, a second apart.

    All files are written from the same moment on, so that a file's events are as late as others are long.
    """
    for file in files:
        time_ms = FIRST_MS
        for line in file.lines():
            if line.strip():
                yield TextEvent(file.module, line, time_ms)
                time_ms += LINE_MS
            else:
                time_ms += PAUSE_MS


def in_order_but_for_some(events: Sequence[TextEvent]) -> list[TextEvent]:
    """Sort events by time, but let each 97th come a tenth of them later."""
    in_order = sorted(events, key=lambda event: event.time_ms)
    behind = len(in_order) // 10
    places = [number + (behind if number % _LATE_EVERY == 0 else 0) for number in range(len(in_order))]
    return [event for _, event in sorted(zip(places, in_order, strict=True), key=lambda pair: pair[0])]


def publish_text(client: Client, topic: str, files: Sequence[TextFile]) -> list[TextEvent]:
    """Publish the lines of files by module, and return them in that order."""
    events = in_order_but_for_some(list(text_events(files)))
    producer = client.create_producer(topic)
    for first in range(0, len(events), _LINES_PER_SEND):
        part = events[first : first + _LINES_PER_SEND]
        producer.send_many(
            [event.line for event in part],
            partition_keys=[event.module for event in part],
            event_timestamps=[event.time_ms for event in part],
        )
    producer.close()
    return events
