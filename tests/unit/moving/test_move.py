"""A move's steps: broken off anywhere it is at one place, and the catalog alone says at which."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from pulsar_ray.moving.move import MOST_ROUNDS, SMALL_REST_BYTES, Move, Step

BEFORE = [Step.PREPARE, Step.COPY, Step.STOP, Step.FENCE, Step.LAST, Step.INSTALL]


def new_move() -> Move:
    return Move("id", "persistent://public/default/t", 7, "a", "b")


def carry_on(move: Move, step: Step) -> None:
    """Carry one step out, as it goes if all is well."""
    if step is Step.COPY:
        move.copied(100, 0)
    elif step is Step.OWN:
        move.owned(True)
    else:
        move.done()


def steps_of(move: Move, fails: Step | None = None) -> list[Step]:
    done = []
    while (step := move.next()) is not None:
        done.append(step)
        if step is fails:
            move.failed("broken")
        else:
            carry_on(move, step)
    return done


def test_all_steps_in_order() -> None:
    move = new_move()
    assert steps_of(move) == [*BEFORE, Step.OWN, Step.CLEAR, Step.RESUME]
    assert (move.is_moved, move.reason, move.is_held) == (True, "", False)


@pytest.mark.parametrize("fails", BEFORE)
def test_what_fails_before_the_catalog_decides_stays(fails: Step) -> None:
    move = new_move()
    done = steps_of(move, fails)
    assert done == [*BEFORE[: BEFORE.index(fails) + 1], Step.DISCARD, Step.RESUME]
    assert (move.is_moved, move.reason, move.is_held) == (False, "broken", False)


def test_the_catalog_is_asked_until_it_answers() -> None:
    move = new_move()
    for _ in BEFORE:
        step = move.next()
        assert step is not None
        carry_on(move, step)
    for _ in range(5):
        assert move.next() is Step.OWN
        move.failed("its disk is full")
    move.give_up("too late")
    assert move.next() is Step.OWN
    move.owned(True)
    assert steps_of(move) == [Step.CLEAR, Step.RESUME]
    assert move.is_moved


def test_one_that_the_catalog_refuses_is_discarded() -> None:
    move = new_move()
    while (step := move.next()) is not Step.OWN:
        assert step is not None
        carry_on(move, step)
    move.owned(False)
    assert steps_of(move) == [Step.DISCARD, Step.RESUME]
    assert not move.is_moved


@pytest.mark.parametrize("fails", [Step.CLEAR, Step.RESUME])
def test_behind_the_catalogs_word_it_has_moved_whatever_fails(fails: Step) -> None:
    move = new_move()
    assert steps_of(move, fails)[-1] is Step.RESUME
    assert (move.is_moved, move.reason) == (True, "")


def test_rounds_go_on_and_publishing_is_slowed_down_once_they_do_not_shrink() -> None:
    move = new_move()
    move.next()
    move.done()
    rest = SMALL_REST_BYTES * 10
    move.copied(1 << 40, rest)
    assert move.next() is Step.COPY
    are_outrun = []
    for part in (3, 4):  # publishing is faster than copying then
        move.copied(1 << 40, rest // part)
        assert move.next() is Step.COPY
        are_outrun.append(move.is_outrun)
    assert are_outrun == [False, True]
    move.copied(1 << 40, SMALL_REST_BYTES)
    assert move.next() is Step.STOP


def test_there_are_so_many_rounds_at_most() -> None:
    move = new_move()
    move.next()
    move.done()
    rest = SMALL_REST_BYTES << 40
    for number in range(MOST_ROUNDS):
        assert move.next() is Step.COPY
        move.copied(1 << 80, rest >> (2 * number))
    assert move.next() is Step.STOP


def test_one_that_has_not_begun_is_given_up_at_once() -> None:
    move = new_move()
    move.give_up("its target is drained")
    assert move.step is None
    assert move.describe()["state"] == "broken off"


def test_nobody_is_held_behind_the_end_whatever_fails() -> None:
    for seed in range(300):
        random, move = Random(seed), new_move()
        for turn in itertools.count():
            step = move.next()
            if step is None:
                break
            if random.random() < 0.05:
                move.give_up("somebody wants that")
            is_decided = step is Step.OWN and random.random() < 0.5
            if is_decided:
                move.owned(random.random() < 0.7)
            elif random.random() < 0.3 and turn < 100:
                move.failed("broken")
            else:
                carry_on(move, step)
        assert not move.is_held
        assert move.is_moved == (move.describe()["state"] == "moved")
        assert move.is_moved or move.reason
