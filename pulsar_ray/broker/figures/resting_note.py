"""Keeps a sleeping partition's backlogs beside its data, for the metrics of its node.

The note is written as the partition falls asleep. It is no part of the data: one that is lost or damaged is
missed by metrics alone, until the partition is used again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pulsar_ray.broker.figures.actor_report import StoredBacklog
from pulsar_ray.broker.figures.node_figures import RestingPartition
from pulsar_ray.errors import InvalidTopicName
from pulsar_ray.model.topic_name import TopicName

RESTING_NOTE = "figures"


def write_resting_note(directory: Path, partition: RestingPartition) -> None:
    """Write a partition's note, in place of the former one. Raises OSError."""
    staged = directory / f"{RESTING_NOTE}.new"
    staged.write_text(json.dumps(partition))
    os.replace(staged, directory / RESTING_NOTE)


def read_resting_note(directory: str | Path) -> RestingPartition | None:
    """Read a partition's note; None if it has none that can be read."""
    try:
        with open(f"{directory}/{RESTING_NOTE}", "rb") as note:
            topic, storage_bytes, backlogs = json.load(note)
        TopicName.parse(topic)
        return RestingPartition(topic, float(storage_bytes), _backlogs(backlogs))
    except (OSError, ValueError, TypeError, AttributeError, InvalidTopicName):
        return None


def _backlogs(stored: Mapping[str, list[int]]) -> dict[str, StoredBacklog]:
    return {name: StoredBacklog(*map(int, numbers)) for name, numbers in stored.items()}


def read_resting_notes(ledgers: Path) -> Iterator[tuple[int, RestingPartition]]:
    """Read the notes of all partitions of a store, by number."""
    # A store has tens of thousands of directories: no Path is made of each.
    with contextlib.suppress(FileNotFoundError), os.scandir(ledgers) as partitions:
        for partition in partitions:
            if partition.name.isascii() and partition.name.isdigit():
                note = read_resting_note(partition.path)
                if note is not None:
                    yield int(partition.name), note
