"""Rounds whose process ends at any of their steps, without a broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from pulsar_ray.errors import NotConnected
from pulsar_ray_spark.rounds.durable_rounds import DurableRounds

MESSAGES = 10
PER_ROUND = 3


class Killed(BaseException):
    """As if the process ended here."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of one partition from `first` to before `end`; none once they are committed."""

    first: int
    end: int

    @property
    def is_committed(self) -> bool:
        return self.first == self.end

    @property
    def ends(self) -> dict[str, int]:
        return {} if self.is_committed else {"t": self.end}

    @property
    def reached(self) -> dict[str, int]:
        return {"t": self.first}

    def committed(self) -> Numbers:
        return Numbers(self.end, self.end)


class World:
    """What outlasts a process: the log, the work that was done, and what the topic still has."""

    def __init__(self, *, stores_commits: bool) -> None:
        self.stores_commits = stores_commits
        self.last: bytes | None = None
        self.done: dict[int, Numbers] = {}
        self.given_up = 0
        self.steps: Iterator[int] = iter(())

    def step(self) -> None:
        if next(self.steps, 1) == 0:
            raise Killed

    def append(self, record: bytes) -> None:
        self.step()
        self.last = record
        self.step()

    def give_up(self, places: Mapping[str, int]) -> None:
        self.step()
        self.given_up = max(self.given_up, places["t"])
        self.step()

    def work(self, numbers: Numbers) -> None:
        """Idempotent by the round; needs its messages unless it was done."""
        self.step()
        if numbers.first not in self.done:
            assert numbers.first >= self.given_up, "messages of a round that is not done were given up"
            self.done[numbers.first] = numbers
        assert self.done[numbers.first] == numbers, "the round is another one in its rerun"
        self.step()

    def run(self, ends_at: int | None = None) -> None:
        self.steps = iter(()) if ends_at is None else iter(range(ends_at, -1, -1))
        rounds = DurableRounds(
            self,
            lambda each: b"%d %d" % (each.first, each.end),
            self.give_up,
            Numbers(0, 0),
            stores_commits=self.stores_commits,
        )
        if not rounds.resume(lambda record: Numbers(*map(int, record.split()))):
            rounds.begin(Numbers(0, 0), releases=False)
        rounds.release()
        while (pending := rounds.pending) is not None or rounds.last.end < MESSAGES:
            if pending is None:
                first = rounds.last.end
                pending = rounds.plan(Numbers(first, min(first + PER_ROUND, MESSAGES)))
            self.work(pending)
            rounds.commit()
            rounds.release()


@pytest.mark.parametrize("stores_commits", [False, True])
def test_each_round_is_done_once_wherever_the_process_ends(stores_commits: bool) -> None:
    moment, ended = 0, True
    while ended:
        world, ended = World(stores_commits=stores_commits), False
        try:
            world.run(ends_at=moment)
        except Killed:
            ended = True
        world.run()
        assert sorted((each.first, each.end) for each in world.done.values()) == [
            (0, 3),
            (3, 6),
            (6, 9),
            (9, 10),
        ], moment
        assert world.given_up == MESSAGES
        moment += 1
    assert moment > 4 * PER_ROUND


def test_what_could_not_be_given_up_is_with_the_next_call() -> None:
    places: list[dict[str, int]] = []
    errors = [NotConnected("away")]

    def give_up(given: Mapping[str, int]) -> None:
        places.append(dict(given))
        if errors:
            raise errors.pop()

    rounds = DurableRounds(
        World(stores_commits=True), lambda _: b"", give_up, Numbers(0, 0), stores_commits=True
    )
    rounds.begin(Numbers(0, 0), releases=False)
    rounds.plan(Numbers(0, 3))
    rounds.commit()
    with pytest.raises(NotConnected):
        rounds.release()
    rounds.release()
    rounds.release()
    assert places == [{"t": 3}, {"t": 3}]


@pytest.mark.parametrize("releases", [False, True])
def test_a_beginning_behind_messages_gives_them_up(releases: bool) -> None:
    world = World(stores_commits=True)
    rounds = DurableRounds(world, lambda _: b"", world.give_up, Numbers(0, 0), stores_commits=True)
    rounds.begin(Numbers(4, 4), releases=releases)
    rounds.release()
    assert world.given_up == (4 if releases else 0)
