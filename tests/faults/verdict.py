"""What the journals of a run promise, held against the log and against what came later."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.faults.journal import Id, Record, read_on
from tests.faults.processes import ClientProcess
from tests.faults.reading import Stored

Log = dict[Id, str]
"""Every stored message: its place and the head of its payload, which names producer and number."""


class PromiseBroken(AssertionError):
    """A defect of the product, however busy the machine is: never to be tried again."""


def keep(is_kept: bool, breach: str) -> None:
    """Raise PromiseBroken unless the promise is kept."""
    if not is_kept:
        raise PromiseBroken(breach)


def head_of(payload: bytes) -> str:
    return payload[:60].decode().rsplit(" ", 1)[0]


def log_of(stored: Iterable[Stored]) -> Log:
    found: Log = {}
    for message in stored:
        found[message.place] = head_of(message.payload)
    return found


def confirmed(producers: Sequence[ClientProcess]) -> dict[str, Id | None]:
    """Heads of all confirmed messages, with their places where the producer was told."""
    heads: dict[str, Id | None] = {}
    for producer in producers:
        for spec, records in producer.lives():
            for record in records:
                if record.kind == "confirmed":
                    number, place = record.values
                    heads[f"{spec.tag} {number}"] = None if place is None else as_id(place)
    return heads


def check_log(log: Log, promised: dict[str, Id | None]) -> None:
    """Every confirmed message is there once, where its receipt said; each producer's are in order."""
    times = Counter(log.values())
    twice = [head for head, count in times.items() if count > 1]
    keep(not twice, f"stored more than once: {sorted(twice)[:20]}")
    missing = [head for head in promised if head not in times]
    keep(not missing, f"{len(missing)} confirmed but not in the log: {sorted(missing)[:20]}")
    elsewhere = {h: p for h, p in promised.items() if p is not None and log.get(p) != h}
    keep(not elsewhere, f"not where the receipts said: {dict(list(elsewhere.items())[:20])}")
    last: dict[tuple[int, str], int] = {}
    for place in sorted(log):
        tag, number = log[place].rsplit(" ", 1)
        key = (place[0], tag)
        keep(last.get(key, -1) < int(number), f"{log[place]} at {place} comes after number {last.get(key)}")
        last[key] = int(number)


class Arrivals:
    """The heads of what the consumers of one subscription have been given; asked again, it reads on."""

    def __init__(self, consumers: Sequence[ClientProcess]) -> None:
        self._consumers = consumers
        self._read: dict[str, int] = {}
        self._heads: set[str] = set()

    def heads(self) -> set[str]:
        for consumer in self._consumers:
            for spec in consumer.specs:
                path = Path(spec.journal)
                records, self._read[spec.journal] = read_on(path, self._read.get(spec.journal, 0))
                self._heads.update(record.values[1] for record in records if record.kind == "received")
        return self._heads


class Deliveries:
    """What the consumers of one subscription were given and what they acknowledged for sure."""

    def __init__(self, consumers: Sequence[ClientProcess]) -> None:
        self.received: list[tuple[int, Id, str, str]] = []
        self.acknowledged: dict[Id, int] = {}
        for consumer in consumers:
            for spec, records in consumer.lives():
                self._read(spec.tag, list(records))

    def _read(self, tag: str, records: list[Record]) -> None:
        rows: dict[tuple[int, int, int], set[Id]] = {}
        open_places: defaultdict[int, list[Id]] = defaultdict(list)  # by partition: not acknowledged up to
        for record in records:
            if record.kind == "received":
                place = as_id(record.values[0])
                self.received.append((record.at_ns, place, record.values[1], tag))
                open_places[place[0]].append(place)
            elif record.kind == "acknowledged":
                place, size = as_id(record.values[0]), record.values[1]
                batch = rows.setdefault(place[:3], set())
                batch.add(place)
                # A batch comes again whole until its consumer has acknowledged all of it.
                if len(batch) >= size:
                    for each in batch:
                        self.acknowledged.setdefault(each, record.at_ns)
            elif record.kind == "acknowledged up to":
                last, size = as_id(record.values[0]), record.values[1]
                end = last if last[3] == size - 1 or last[3] < 0 else (*last[:3], -1)
                above = []
                for place in open_places[end[0]]:
                    if place <= end:
                        self.acknowledged.setdefault(place, record.at_ns)
                    else:
                        above.append(place)
                open_places[end[0]] = above

    def check_contents(self, log: Log) -> None:
        """What was received is what the log has there."""
        wrong = [(place, head, tag) for _, place, head, tag in self.received if log.get(place) != head]
        keep(not wrong, f"received something else than the log has: {wrong[:20]}")

    def check_acknowledged_stay_away(self) -> None:
        """Nothing whose acknowledgment was confirmed came to anybody afterwards."""
        late = [
            (place, tag, (at_ns - self.acknowledged[place]) / 1e9)
            for at_ns, place, _, tag in self.received
            if place in self.acknowledged and at_ns > self.acknowledged[place]
        ]
        keep(not late, f"{len(late)} came after their acknowledgment was confirmed: {late[:20]}")

    def check_once(self) -> None:
        """Every message was shown once, whoever it was shown to."""
        times = Counter(place for _, place, _, _ in self.received)
        twice = {place for place, count in times.items() if count > 1}
        shown = [(at_ns, place, tag) for at_ns, place, _, tag in self.received if place in twice]
        keep(not twice, f"{len(twice)} were shown more than once: {sorted(shown, key=lambda s: s[1])[:20]}")


def as_id(values: Sequence[int]) -> Id:
    partition, ledger_id, entry_id, batch_index = values
    return partition, ledger_id, entry_id, batch_index
