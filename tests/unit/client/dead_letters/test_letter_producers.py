"""Producers of letters are open while they are used, and for a minute behind that; the client is played."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pulsar_ray.client.dead_letters.letter_producers import IDLE_S, LetterProducers
from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.errors import DiskSpaceLow
from pulsar_ray.model.enums import ConsumerType

WAIT_S = 20.0
SOURCE = "persistent://public/default/orders"


class Producer:
    def __init__(self, options: Any) -> None:
        self.ending = Ending("producer")
        self.options = options
        self.has_ended = False

    def topic(self) -> str:
        name: str = self.options.topic
        return name

    def close(self) -> None:
        self.has_ended = True


class Letters:
    """The producers of a consumer, and its client's side; `now_s` is set by hand."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.opened: list[Producer] = []
        options = ConsumerOptions.from_arguments(
            topic=SOURCE,
            subscription_name="s",
            consumer_type=ConsumerType.Shared,
            dead_letter_policy=ConsumerDeadLetterPolicy(1),
        )
        self.producers = LetterProducers(self, options, LetterTopics(options), "consumer", lambda: self.now_s)

    def producer_from(self, options: Any) -> Producer:
        self.opened.append(Producer(options))
        return self.opened[-1]

    def consumer_from(self, options: Any) -> Any:
        raise AssertionError("no initial subscription is wanted")

    def keeps_nothing(self, topic: str) -> bool:
        return False

    @property
    def are_open(self) -> list[bool]:
        return [not producer.has_ended for producer in self.opened]


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.mark.parametrize("is_dead", [False, True])
def test_one_that_is_not_used_for_long_is_closed_and_opened_for_the_next_letter(
    letters: Letters, is_dead: bool
) -> None:
    with letters.producers.lent(SOURCE, is_dead=is_dead):
        pass
    letters.now_s += IDLE_S - 1
    letters.producers.close_unused()
    assert letters.are_open == [True]
    with letters.producers.lent(SOURCE, is_dead=is_dead):
        pass
    letters.now_s += IDLE_S - 1
    letters.producers.close_unused()
    assert letters.are_open == [True], "it was used meanwhile"
    letters.now_s += 1
    letters.producers.close_unused()
    assert letters.are_open == [False]
    with letters.producers.lent(SOURCE, is_dead=is_dead):
        assert letters.are_open == [False, True]


def test_one_that_is_used_stays_open_however_long_it_takes(letters: Letters) -> None:
    with letters.producers.lent(SOURCE, is_dead=True):
        with letters.producers.lent(SOURCE, is_dead=True):
            pass
        letters.now_s += 10 * IDLE_S
        letters.producers.close_unused()
        assert letters.are_open == [True]
    letters.producers.close_unused()
    assert letters.are_open == [True], "it was used until now"


def test_each_topic_counts_for_itself(letters: Letters) -> None:
    with letters.producers.lent(SOURCE, is_dead=True):
        pass
    letters.now_s += IDLE_S
    with letters.producers.lent(SOURCE, is_dead=False):
        pass
    letters.producers.close_unused()
    assert letters.are_open == [False, True]


def test_closing_closes_all_and_later_ones_are_opened_anew(letters: Letters) -> None:
    with letters.producers.lent(SOURCE, is_dead=True):
        pass
    letters.producers.close()
    assert letters.are_open == [False]
    with letters.producers.lent(SOURCE, is_dead=True):
        assert letters.are_open == [False, True]


def test_who_asks_while_one_is_opened_gets_that_one(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    make = letters.producer_from

    def make_slowly(options: Any) -> Producer:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return make(options)

    monkeypatch.setattr(letters, "producer_from", make_slowly)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(letters.producers.open, SOURCE, is_dead=True)
        assert begun.wait(WAIT_S)
        second = threads.submit(letters.producers.open, SOURCE, is_dead=True)
        may_go_on.set()
        assert first.result(WAIT_S) is second.result(WAIT_S)
    assert len(letters.opened) == 1


def test_a_close_waits_for_one_that_is_opened(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    make = letters.producer_from

    def make_slowly(options: Any) -> Producer:
        begun.set()
        assert may_go_on.wait(WAIT_S)
        return make(options)

    monkeypatch.setattr(letters, "producer_from", make_slowly)
    with ThreadPoolExecutor() as threads:
        opened = threads.submit(letters.producers.open, SOURCE, is_dead=True)
        assert begun.wait(WAIT_S)
        closed = threads.submit(letters.producers.close)
        may_go_on.set()
        closed.result(WAIT_S)
        opened.result(WAIT_S)
    assert letters.are_open == [False]


def test_one_that_cannot_be_opened_is_tried_by_the_next(
    letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = letters.producer_from

    def refuse(_: Any) -> Producer:
        raise DiskSpaceLow("full")

    monkeypatch.setattr(letters, "producer_from", refuse)
    with pytest.raises(DiskSpaceLow):
        letters.producers.open(SOURCE, is_dead=True)
    monkeypatch.setattr(letters, "producer_from", make)
    letters.producers.open(SOURCE, is_dead=True)
    assert letters.are_open == [True]


def test_nothing_is_kept_of_topics_whose_producers_are_closed(letters: Letters) -> None:
    for number in range(3):
        with letters.producers.lent(f"{SOURCE}-{number}", is_dead=False):
            pass
    letters.now_s += IDLE_S
    letters.producers.close_unused()
    assert not any(held for held in vars(letters.producers).values() if isinstance(held, (dict, set, list)))
