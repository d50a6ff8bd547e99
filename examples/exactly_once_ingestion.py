"""Exactly once from a file to a result, though both programs crash on the way.

    python examples/exactly_once_ingestion.py

On the way in, deduplication: the producer has a name, and each line's number is its sequence id. After a
crash it begins again wherever it likes, and what is stored already is not stored again.

On the way out, the result is kept together with the id of the last message that is in it. After a crash
messages come again that were not acknowledged; those up to that id are in the result already.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pulsar_ray

LINES = 1000
TOPIC = "sales"


def crash() -> None:
    """End this process as kill -9 does."""
    os.kill(os.getpid(), signal.SIGKILL)


def run(work: Callable[..., None], *arguments: Any) -> bool:
    """Run a program in a process of its own; returns whether it crashed."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{work.__name__} ended with {process.exitcode}")
    return process.exitcode != 0


def ingest(lines: list[str], first: int, crash_at: int | None = None) -> None:
    """Send the lines from `first` on, each with its number."""
    with pulsar_ray.Client() as client:
        # No message fails for being late: it would come behind later ones, and be taken for a duplicate.
        producer = client.create_producer(
            TOPIC, "ingest-sales", batching_enabled=True, block_if_queue_full=True, send_timeout_millis=0
        )
        for number in range(first, len(lines)):
            if number == crash_at:
                crash()
            producer.send_async(lines[number].encode(), None, sequence_id=number)
        producer.flush()


def summarize(result: Path, crash_behind: int | None = None) -> None:
    """Add up all messages; the result changes together with its place in the topic."""
    total, place = (0, None) if not result.exists() else json.loads(result.read_text())
    done = pulsar_ray.MessageId.deserialize(bytes.fromhex(place)) if place else None
    with pulsar_ray.Client() as client:
        consumer = client.subscribe(
            TOPIC, "totals", initial_position=pulsar_ray.InitialPosition.Earliest, receiver_queue_size=100
        )
        batches = 0
        while True:
            try:
                message = consumer.receive(10_000)
            except pulsar_ray.Timeout:
                return
            if done is None or message.message_id() > done:
                total += int(message.data())
                done = message.message_id()
                _replace(result, json.dumps([total, done.serialize().hex()]))
            batches += 1
            if batches == crash_behind:
                crash()  # the result has the message, and its acknowledgment is lost
            if batches % 50 == 0:
                consumer.acknowledge_cumulative(message)


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole or not at all."""
    staged = path.with_suffix(".new")
    with staged.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)


def main() -> None:
    """Crash in the middle of both ways, and start again."""
    lines = [str(number % 97) for number in range(LINES)]
    with pulsar_ray.Client(), pulsar_ray.Admin() as admin, tempfile.TemporaryDirectory() as directory:
        with suppress(pulsar_ray.exceptions.TopicNotFound):
            # Of an earlier run.
            admin.topics.delete(TOPIC, force=True)
        admin.topics.create_topic(TOPIC)
        admin.topics.policies.set(TOPIC, "deduplication", deduplication=True)
        result = Path(directory) / "total.json"
        # Nobody knows how far a crashed one came: from the beginning is always right.
        crashes = sum(run(ingest, lines, 0, crash_at) for crash_at in (300, 750, None))
        crashes += sum(run(summarize, result, crash_behind) for crash_behind in (120, 333, None))
        total, _ = json.loads(result.read_text())
        assert total == sum(map(int, lines)), total
        print(f"{LINES} lines counted once each, after {crashes} crashes")


if __name__ == "__main__":
    main()
