"""Measure what a compaction costs, what it costs publishing beside it, and a table view of many keys."""

from __future__ import annotations

import gc
import os
import random
import shutil
import time
from collections.abc import Iterator
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
BESIDE_ROUNDS = 9
BESIDE_MESSAGES = 200_000
SLICES = 5
COPIED_AT_ONCE = 4 << 20
LOOK_S = 0.02
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
        batches = [next(self._keys) for _ in range(messages // AT_ONCE)]
        self.publish_keys(batches)

    def publish_keys(self, batches: list[list[str]]) -> float:
        """Seconds for a batch of each."""
        began = time.perf_counter()
        for keys in batches:
            self._producer.send_many_async(self._values, None, partition_keys=keys)
        self._producer.flush()
        return time.perf_counter() - began

    def slice_s(self, messages: int) -> float:
        """Seconds for so many messages, whose keys are there before."""
        return self.publish_keys([next(self._keys) for _ in range(messages // AT_ONCE)])

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
    """Each round has a topic that was never compacted: slices before, while that goes on, and behind."""
    count = min(BESIDE_MESSAGES, messages) // AT_ONCE * AT_ONCE
    without, beside, ratios = [], [], []
    for _ in range(env.count(BESIDE_ROUNDS, 1)):
        topic = broker.topic()
        publisher = _Publisher(broker, topic, keys)
        publisher.publish(messages)
        alone = [publisher.slice_s(count) for _ in range(SLICES)]
        admin.topics.compact(topic)
        _wait(admin, topic, at_least=0.01)
        meanwhile = []
        while True:
            slice_s = publisher.slice_s(count)
            if admin.topics.compaction_status(topic)["status"] != "RUNNING":
                break
            meanwhile.append(slice_s)
        _wait(admin, topic, at_least=1.0)
        alone += [publisher.slice_s(count) for _ in range(SLICES)]
        publisher.close()
        admin.topics.delete(topic, force=True)
        without += alone
        beside += meanwhile
        if meanwhile:
            ratios.append(p50(alone) / p50(meanwhile))
    what = f"publish to a topic of {messages:,} messages while it is compacted"
    if not ratios:
        return Row(what, "", "", note="each compaction had ended before a slice beside it had")
    return Row(
        what,
        rate(count, p50(beside)),
        f"before and behind {rate(count, p50(without))}",
        p50(ratios),
        0.8,
        note=f"{len(beside)} slices of {count:,} messages beside {len(ratios)} compactions",
    )


def _wait(admin: pulsar_ray.Admin, topic: str, *, at_least: float) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (status := admin.topics.compaction_status(topic))["progress"] < at_least:
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
    _wait(admin, topic, at_least=1.0)
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
