"""A topic that is compacted again and again: its view is the latest of each key, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from pulsar_ray import Client, Consumer, ConsumerType, InitialPosition, MessageId, Producer
from pulsar_ray.admin import Admin
from pulsar_ray.errors import NotAllowedError, PulsarException, Timeout
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import compactor_name
from tests.faults.journal import Id, id_of
from tests.torture.clients import Working

KEYS = 20
MOST_ROWS = 40
MOST_BYTES = 3_000
TOMBSTONES = 0.15
SUBSCRIPTION = "table"
LIFE_S = 5.0
READ_MS = 12_000
CALM_S = 60.0
QUIET_MS = 400


class Row(NamedTuple):
    """A message of the log or of the view; without data it removes its key."""

    place: Id
    key: str
    data: bytes


class Compacting(Working):
    """The only one that writes to its table, and compacts the scene's topic as well."""

    def __init__(
        self, name: str, new_admin: Callable[[], Admin], kill: Callable[[str], object], *arguments: Any
    ) -> None:
        super().__init__(name, *arguments)
        self.table = table_of(self.notes.topic)
        self._new_admin = new_admin
        self._kill = kill
        self._written = 0
        self.given: set[Row] = set()
        """What the subscription gave, to whichever consumer."""
        self.looks = 0

    def live(self, client: Client) -> None:
        end = self.end_of_life(LIFE_S)
        producer = client.create_producer(self.table, batching_enabled=self.rng.random() < 0.7)
        consumer = self._subscribe(client)
        with self._new_admin() as admin:
            while not self.stopped.is_set() and time.monotonic() < end:
                step = self.rng.random()
                if step < 0.5:
                    self._write(producer)
                elif step < 0.8:
                    self._compact(admin, self.table if step < 0.7 else self.notes.topic)
                elif step < 0.9:
                    self._take(consumer)
                else:
                    self._look(client)

    def _subscribe(self, client: Client) -> Consumer:
        return client.subscribe(
            self.table,
            SUBSCRIPTION,
            ConsumerType.Failover,
            initial_position=InitialPosition.Earliest,
            is_read_compacted=True,
        )

    def _write(self, producer: Producer) -> None:
        for _ in range(self.rng.randrange(1, MOST_ROWS)):
            self._written += 1
            key, size = f"key-{self.rng.randrange(KEYS)}", self.rng.randrange(MOST_BYTES)
            data = (f"{self._written} " * size)[:size].encode() or None
            value = None if self.rng.random() < TOMBSTONES else data
            producer.send_async(value, None, partition_key=key)
        producer.flush()

    def _compact(self, admin: Admin, topic: str) -> None:
        with suppress(NotAllowedError):
            admin.topics.compact(topic)
        if self.rng.random() < 0.3:
            self.stopped.wait(self.rng.random() * 0.1)
            with suppress(PulsarException, RuntimeError, KeyError):
                self._kill(compactor_name(topic))
        while self.rng.random() < 0.9 and admin.topics.compaction_status(topic)["status"] == "RUNNING":
            self.stopped.wait(0.05)

    def _take(self, consumer: Consumer, wait_ms: int = 50) -> None:
        with suppress(Timeout):
            while True:
                message = consumer.receive(wait_ms)
                self.given.add(_row(message))
                consumer.acknowledge(message)

    def _look(self, client: Client) -> None:
        before = rows_of(client, self.table, compacted=False)
        view = rows_of(client, self.table, compacted=True)
        after = rows_of(client, self.table, compacted=False)
        check_view(before, view, after)
        self.looks += 1

    def judge(self, client: Client) -> None:
        """Judge the table, and what the subscription gave of it. Raises AssertionError."""
        log, latest = judge_table(client, self._new_admin, self.table)
        consumer = self._subscribe(client)
        missing = self._missing(latest)
        end = time.monotonic() + CALM_S
        while missing and time.monotonic() < end:  # a consumer that was killed is active until its lease ends
            self._take(consumer, QUIET_MS)
            missing = self._missing(latest)
        assert not missing, f"the subscription never gave {_short(missing)}"
        assert self.given <= set(log), f"nobody wrote {_short(self.given - set(log))}"
        consumer.close()

    def _missing(self, latest: list[Row]) -> list[Row]:
        """What no consumer of the subscription was given."""
        return [row for row in latest if row not in self.given]


def judge_table(client: Client, new_admin: Callable[[], Admin], topic: str) -> tuple[list[Row], list[Row]]:
    """Compact once more when all is calm: the view is then what the log says.

    Returns the log, and the latest of each key. Raises AssertionError.
    """
    log = rows_of(client, topic, compacted=False)
    latest = sorted(latest_of(log).values())
    with new_admin() as admin:
        for _ in range(2):
            wait_until(lambda: _is_compacted(admin, topic), CALM_S, "a compaction")
    wait_until(lambda: rows_of(client, topic, compacted=True) == latest, CALM_S, "the latest of each key")
    with client.create_table_view(topic) as table:
        found = {row.key: table.get(row.key) for row in latest}
        assert (len(table), found) == (len(latest), {row.key: row.data for row in latest})
    return log, latest


def table_of(topic: str) -> str:
    """The topic of the scene's table."""
    return f"{topic}-table"


def _is_compacted(admin: Admin, topic: str) -> bool:
    """Whether a compaction that began now has succeeded."""
    with suppress(NotAllowedError):
        admin.topics.compact(topic)
    wait_until(lambda: admin.topics.compaction_status(topic)["status"] != "RUNNING", CALM_S)
    return bool(admin.topics.compaction_status(topic)["status"] == "SUCCESS")


def rows_of(client: Client, topic: str, *, compacted: bool) -> list[Row]:
    """All that a reader has from the first message on."""
    found = []
    reader = client.create_reader(topic, MessageId.earliest, is_read_compacted=compacted)
    while reader.has_message_available():
        found.append(_row(reader.read_next(READ_MS)))
    reader.close()
    return found


def _row(message: Any) -> Row:
    return Row(id_of(message.message_id()), message.partition_key(), message.data())


def latest_of(rows: Iterable[Row]) -> dict[str, Row]:
    """The newest row of each key that is not removed."""
    found: dict[str, Row] = {}
    for row in rows:
        found.pop(row.key, None)
        if row.data:
            found[row.key] = row
    return found


def check_view(before: list[Row], view: list[Row], after: list[Row]) -> None:
    """Hold a view against the log as it was before and after. Raises AssertionError."""
    places = [row.place for row in view]
    assert places == sorted(set(places)), "the view is not in the order of the log"
    assert set(view) <= set(after), f"the view has {_short(set(view) - set(after))}, and the log has not"
    last = {row.key: row for row in after}
    seen = latest_of(view)
    for row in latest_of(before).values():
        is_superseded = last[row.key] != row
        assert is_superseded or seen.get(row.key) == row, f"the view lacks {_short([row])}"
    if before == after:
        odd = set(seen.values()) ^ set(latest_of(after).values())
        assert not odd, f"the view folds to something else than the log: {_short(odd)}"


def _short(rows: Iterable[Row]) -> str:
    return ", ".join(f"{row.key} at {row.place}: {row.data[:20]!r}" for row in sorted(rows)[:5])
