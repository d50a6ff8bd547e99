"""Measure what a compaction costs, what it costs publishing beside it, and a table view of many keys."""

from __future__ import annotations

import gc
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment, run_inside
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row
from pulsar_ray.config import Settings
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, CompactionOutcome
from pulsar_ray.managed_ledger.compaction.compactor import Compactor
from pulsar_ray.managed_ledger.compaction.stored_blocks import SourceSegment
from pulsar_ray.model.message_id import EARLIEST

MESSAGES = 2_000_000
KEYS = 100_000
VIEW_KEYS = 1_000_000
SIZE = 100
AT_ONCE = 1000
ROUNDS = 5
BESIDE_ROUNDS = 5
BESIDE_MESSAGES = 20_000
BESIDE_WINDOW_S = 3.0
COPIED_AT_ONCE = 4 << 20
LOOK_S = 0.05
DEADLINE_S = 300.0


def run(env: Environment) -> list[Row]:
    """Compact one topic by turns with copying it, others beside publishing, and start a view of the last."""
    messages = env.count(MESSAGES, 20_000) // AT_ONCE * AT_ONCE
    keys = env.count(KEYS, 1000)
    with env.broker() as broker, pulsar_ray.Admin() as admin:
        return [
            *_alone(env, broker, messages, keys),
            _beside(env, broker, admin, messages, keys),
            *_view(broker, admin, env.count(VIEW_KEYS, 1000) // AT_ONCE * AT_ONCE),
        ]


class _Publisher:
    """Publishes batches of keyed messages; the keys come in an order of their own."""

    def __init__(self, broker: Broker, topic: str, keys: int) -> None:
        self._producer = broker.client.create_producer(topic, batching_enabled=True, block_if_queue_full=True)
        self._keys = self._random(keys)
        data = random.Random(1).randbytes(SIZE * AT_ONCE)
        self._values = [data[at * SIZE : (at + 1) * SIZE] for at in range(AT_ONCE)]

    @staticmethod
    def _random(keys: int) -> Iterator[list[str]]:
        names = [f"key-{number}" for number in range(keys)]
        generator = random.Random(2)
        while True:
            yield generator.choices(names, k=AT_ONCE)

    def publish(self, messages: int) -> None:
        """All are confirmed when it returns."""
        self.publish_keys(self.batches(messages))

    def batches(self, messages: int) -> list[list[str]]:
        """Keys of so many messages."""
        return [next(self._keys) for _ in range(messages // AT_ONCE)]

    def publish_keys(self, batches: list[list[str]]) -> float:
        """Seconds for a batch of each."""
        began = time.perf_counter()
        for keys in batches:
            self._producer.send_many_async(self._values, None, partition_keys=keys)
        self._producer.flush()
        return time.perf_counter() - began

    def close(self) -> None:
        self._producer.close()


# ---- alone


def _alone(env: Environment, broker: Broker, messages: int, keys: int) -> list[Row]:
    """In this process: by turns with copies of the log, all of it and as much as a compaction writes."""
    topic = broker.topic()
    publisher = _Publisher(broker, topic, keys)
    publisher.publish(messages)
    segments = run_inside(broker.partition(topic), _segments)
    publisher.close()
    outcomes: list[CompactionOutcome] = []
    with env.directory() as directory:

        def compact() -> None:
            place = directory / "form"
            place.mkdir()
            outcomes.append(Compactor(_order(place, topic, segments)).run())
            shutil.rmtree(place)

        log_bytes = sum(segment.end_offset for segment in segments)
        works = {
            "ours": compact,
            "all": lambda: _copy(segments, directory / "copy", log_bytes),
            "kept": lambda: _copy(segments, directory / "copy", outcomes[0].written_bytes),
        }
        times = alternate(works, env.count(ROUNDS, 2))
    outcome = outcomes[0]
    what = f"compact {messages:,} messages of {SIZE} B with {outcome.kept:,} keys"
    took = f"{p50(times['ours']):.2f} s, {outcome.written_bytes / 1e6:.0f} MB kept"
    return [
        Row(
            what,
            took,
            f"read and write {floor_bytes / 1e6:.0f} MB durably {p50(times[floor]):.2f} s",
            p50([other / own for own, other in zip(times["ours"], times[floor], strict=True)]),
            limit,
            note=note,
        )
        for floor, floor_bytes, limit, note in (
            ("all", log_bytes, 0.5, "the floor copies the log and looks at none of it"),
            ("kept", outcome.written_bytes, None, "the floor reads the log, and writes as much as is kept"),
        )
    ]


def _segments(actor: Any) -> list[SourceSegment]:
    """Of a partition's whole log; runs inside its actor."""
    ledger = actor._server.ledger  # noqa: SLF001
    return [
        SourceSegment(each.ledger_id, each.segment_index, str(each.path), each.end_offset)
        for each in ledger.segments()
    ]


def _order(directory: Path, topic: str, segments: list[SourceSegment]) -> CompactionOrder:
    horizon = EARLIEST._replace(ledger_id=segments[-1].ledger_id + 1)
    max_key_bytes = Settings().compaction_max_key_bytes
    return CompactionOrder(
        str(directory), 1, 1, topic, -1, 1, segments, EARLIEST, horizon, False, max_key_bytes
    )


def _copy(segments: list[SourceSegment], path: Path, written: int) -> None:
    """Read all, and write so much of it durably."""
    with path.open("wb", buffering=0) as copy:
        for segment in segments:
            with Path(segment.path).open("rb", buffering=0) as source:
                left = segment.end_offset
                while left and (data := source.read(min(COPIED_AT_ONCE, left))):
                    left -= len(data)
                    copy.write(data[:written])
                    written -= len(data[:written])
        os.fdatasync(copy.fileno())
    path.unlink()


# ---- beside publishing


def _beside(env: Environment, broker: Broker, admin: pulsar_ray.Admin, messages: int, keys: int) -> Row:
    """Each round has a topic that was never compacted.

    The rate from the order to the end, with the start of the process, is held against those of windows before
    and behind.
    """
    window_s = BESIDE_WINDOW_S * min(env.scale, 1)
    without, beside, took = [], [], []
    for _ in range(env.count(BESIDE_ROUNDS, 1)):
        topic = broker.topic()
        publisher = _Publisher(broker, topic, keys)
        publisher.publish(messages)
        _published(publisher, _over(window_s))
        before = _published(publisher, _over(window_s))
        began = time.monotonic()
        admin.topics.compact(topic)
        with _ended(admin, topic) as has_ended:
            beside.append(_published(publisher, has_ended))
        took.append(time.monotonic() - began)
        without.append((before + _published(publisher, _over(window_s))) / 2)
        publisher.close()
        admin.topics.delete(topic, force=True)
    return Row(
        f"publish to a topic of {messages:,} messages while it is compacted",
        rate(p50(beside), 1),
        f"before and behind {rate(p50(without), 1)}",
        p50([each / alone for each, alone in zip(beside, without, strict=True)]),
        0.8,
        note=f"of {len(beside)} compactions, which took {p50(took):.1f} s",
    )


def _published(publisher: _Publisher, is_over: Callable[[], bool]) -> float:
    """Messages per second, published without a pause; the keys are there before."""
    batches = publisher.batches(BESIDE_MESSAGES)
    count, began = 0, time.perf_counter()
    while not is_over():
        publisher.publish_keys(batches)
        count += BESIDE_MESSAGES
    return count / (time.perf_counter() - began)


def _over(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@contextmanager
def _ended(admin: pulsar_ray.Admin, topic: str) -> Iterator[Callable[[], bool]]:
    """Give what says whether a compaction has ended; a thread asks."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(_wait, admin, topic)
        yield ended.done
        ended.result()


def _wait(admin: pulsar_ray.Admin, topic: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (status := admin.topics.compaction_status(topic))["status"] != "SUCCESS":
        if status["status"] == "ERROR" or time.monotonic() > deadline:
            raise TimeoutError(f"compaction of {topic}: {status}")
        time.sleep(LOOK_S)


# ---- a table view


def _view(broker: Broker, admin: pulsar_ray.Admin, keys: int) -> list[Row]:
    """Each key twice; the view begins with the compacted form."""
    topic = broker.topic()
    publisher = _Publisher(broker, topic, 1)
    names = [f"key-{number}" for number in range(keys)]
    for turn in range(2):
        random.Random(turn).shuffle(names)
        publisher.publish_keys([names[at : at + AT_ONCE] for at in range(0, keys, AT_ONCE)])
    publisher.close()
    began = time.perf_counter()
    admin.topics.compact(topic)
    _wait(admin, topic)
    compacting_s = time.perf_counter() - began
    del names
    before, began = _own_bytes(), time.perf_counter()
    view = broker.client.create_table_view(topic)
    took, used = time.perf_counter() - began, _own_bytes() - before
    assert len(view) == keys
    before = _own_bytes()
    plain = {f"key-{number}": os.urandom(SIZE) for number in range(keys)}
    of_dict = max(_own_bytes() - before, 1)
    del plain
    view.close()
    return [
        Row(
            f"table view of {keys:,} keys from the compacted form",
            f"{took:.2f} s, {rate(keys, took)}",
            f"the compaction took {compacting_s:.2f} s with its process",
        ),
        Row(
            "memory of that view",
            f"{used / 1e6:,.0f} MB",
            f"a dict of the same {of_dict / 1e6:,.0f} MB",
            used / of_dict,
            at_most=True,
        ),
    ]


def _own_bytes() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)
