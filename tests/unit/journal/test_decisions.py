"""Controllers that crash, stand still and race, over an object store that loses answers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from pulsar_ray.errors import JournalDamaged
from pulsar_ray.journal import decisions
from pulsar_ray.journal.decisions import DecisionLog, Found, read, rows_in
from pulsar_ray.journal.objects import (
    Decision,
    Place,
    RowChange,
    copied_key,
    copy_key,
    decision_key,
    pack_copied,
    pack_copy,
    pack_decision,
)
from pulsar_ray.journal.reading import create
from pulsar_ray.journal.requests import CREATED, EXISTS, UNKNOWN, Create, Delete, Get, ListKeys, Task, Wait

HISTORIES = 400
STEPS = 700
CONTROLLERS = 6


class Broken(AssertionError):
    """A promise was broken."""


class Bucket:
    """Objects in memory; writes may arrive late, and answers be lost."""

    def __init__(self, random: Random) -> None:
        self.objects: dict[str, bytes] = {}
        self.late: list[Create | Delete] = []
        self._random = random

    def ask(self, wanted: Any) -> Any:
        random = self._random
        if isinstance(wanted, Wait):
            return None
        if isinstance(wanted, Delete):
            self.late.append(wanted)
            return None
        if random.random() < 0.15:  # its fate is unknown
            if isinstance(wanted, Create) and random.random() < 0.7:
                self.late.append(wanted)
            return UNKNOWN
        answer = self.carry_out(wanted)
        return UNKNOWN if random.random() < 0.1 else answer

    def carry_out(self, wanted: Any) -> Any:
        if isinstance(wanted, Get):
            return self.objects.get(wanted.key)
        if isinstance(wanted, ListKeys):
            return sorted(key for key in self.objects if key.startswith(wanted.prefix))
        if isinstance(wanted, Create):
            return EXISTS if self.objects.setdefault(wanted.key, wanted.body) is not wanted.body else CREATED
        for key in wanted.keys:
            self.objects.pop(key, None)
        return None

    def arrive(self) -> None:
        if self.late:
            self.carry_out(self.late.pop(self._random.randrange(len(self.late))))

    def run(self, task: Task[Any]) -> Any:
        answer = None
        while True:
            try:
                answer = self.carry_out(task.send(answer))
            except StopIteration as end:
                return end.value


class Controller:
    """Decides one value after the other; `known` is its file, up to `place`."""

    def __init__(self, world: World, place: Place | None, known: dict[int, Any]) -> None:
        self._world, self.place, self.known = world, place, dict(known)
        self.log = DecisionLog(lambda: world.random.randbytes(8))
        self.task: Task[Any] = self._live()
        self.answer: Any = None
        self.has_begun = self.has_ended = False

    def step(self) -> None:
        try:
            wanted = self.task.send(self.answer)
        except StopIteration:
            self.has_ended = True
            return
        self.answer = self._world.bucket.ask(wanted)

    def _live(self) -> Task[None]:
        world = self._world
        found: Found = yield from self.log.begin(self.place)
        if found.is_anew:
            self.known = {}
        self.known.update({row.row_id: row.values for row in rows_in(found)})
        self.place, self.has_begun = self.log.place, True
        world.check_begun(self)
        if not found.was_seeded:
            yield from self.log.copy([self._all()])
        while True:
            key = world.new_key()
            row = RowChange("t", key, {"epoch": self.log.place.life})
            if not (yield from self.log.decide((row,))):
                return
            self.known[key] = row.values
            self.place = self.log.place
            world.confirmed(self, key)
            if world.random.random() < 0.2:
                yield from self.log.copy([self._all()[:1], self._all()[1:]])

    def _all(self) -> tuple[RowChange, ...]:
        return (RowChange("t", 0, {"epoch": 0}), *(RowChange("t", k, v) for k, v in self.known.items() if k))


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.bucket = Bucket(self.random)
        self.controllers: list[Controller] = []
        self.confirmed_keys: dict[int, int] = {}
        """The epochs of what was decided."""
        self._keys = 0

    def new_key(self) -> int:
        self._keys += 1
        return self._keys

    def confirmed(self, by: Controller, key: int) -> None:
        self.confirmed_keys[key] = by.log.place.life
        for each in self.controllers:
            if each.has_begun and each.log.place.life > by.log.place.life and key not in each.known:
                raise Broken("a controller decides without knowing what another has decided")

    def check_begun(self, new: Controller) -> None:
        epoch = new.log.place.life
        missing = [key for key, of in self.confirmed_keys.items() if of < epoch and key not in new.known]
        if missing:
            raise Broken(f"a controller began without {len(missing)} decisions")

    def begin(self) -> None:
        before = [each for each in self.controllers if each.place is not None]
        disk = self.random.choice(before) if before and self.random.random() < 0.6 else None
        place, known = (disk.place, disk.known) if disk is not None else (None, {})
        self.controllers.append(Controller(self, place, known))

    def run(self) -> None:
        self.begin()
        awake = list(self.controllers)
        for _ in range(STEPS):
            if len(self.controllers) < CONTROLLERS and self.random.random() < 0.01:
                self.begin()
            if self.random.random() < 0.02:  # some stand still for a while, or for ever
                awake = [each for each in self.controllers if self.random.random() < 0.6]
            ready = [each for each in awake if not each.has_ended] or self.controllers[-1:]
            each = self.random.choice(ready)
            if not each.has_ended:
                each.step()
            if self.random.random() < 0.1:
                self.bucket.arrive()
        while self.bucket.late:
            self.bucket.arrive()
        found = self.bucket.run(read())
        if missing := self.confirmed_keys.keys() - {row.row_id for row in rows_in(found)}:
            raise Broken(f"{len(missing)} decisions are gone")


def test_nothing_that_was_decided_is_missing_after_any_history() -> None:
    decided = 0
    for seed in range(HISTORIES):
        world = World(seed)
        world.run()
        decided += len(world.confirmed_keys)
    assert decided > HISTORIES * 10


def _delete_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "ends_among", lambda names: set())


def _take_any_object_for_ones_own(patch: pytest.MonkeyPatch) -> None:
    def write(key: str, body: bytes) -> Task[bytes | None]:
        yield from create(key, body)
        return None

    patch.setattr(decisions, "create", write)


def _do_not_look_at_the_copy_again(patch: pytest.MonkeyPatch) -> None:
    def begin(self: DecisionLog, known: Place | None) -> Task[Found]:
        while True:
            found = yield from read(known)
            end = Decision(self._nonce(), found.end.life + 1)
            body = pack_decision(end)
            if (yield from create(decision_key(found.end), body)) is None:
                self.place = Place(end.next, 0)
                return found

    patch.setattr(DecisionLog, "begin", begin)


def _read_on_where_objects_were_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "has_changed", lambda before, now: False)


def _try_the_next_number(patch: pytest.MonkeyPatch) -> None:
    def decide(self: DecisionLog, rows: tuple[RowChange, ...]) -> Task[bool]:
        while True:
            body = pack_decision(Decision(self._nonce(), 0, rows))
            other = yield from create(decision_key(self.place), body)
            self.place = Place(self.place.life, self.place.number + 1)
            if other is None:
                return True

    patch.setattr(DecisionLog, "decide", decide)


def _say_a_copy_is_there_before_its_parts(patch: pytest.MonkeyPatch) -> None:
    def copy(self: DecisionLog, parts: list[tuple[RowChange, ...]]) -> Task[None]:
        yield from create(copy_key(self.place), pack_copy(self.place, len(parts)))
        yield from decisions._clear_before(self.place)
        for number, part in enumerate(parts):
            key = copied_key(self.place, number)
            yield from create(key, pack_copied(part))

    patch.setattr(DecisionLog, "copy", copy)


@pytest.mark.parametrize(
    "broken",
    [
        _delete_ends,
        _take_any_object_for_ones_own,
        _do_not_look_at_the_copy_again,
        _read_on_where_objects_were_deleted,
        _try_the_next_number,
        _say_a_copy_is_there_before_its_parts,
    ],
)
def test_each_rule_is_needed(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises((Broken, JournalDamaged)):
        _run(20 * HISTORIES)


def _run(histories: int) -> None:
    for seed in range(histories):
        World(seed).run()
