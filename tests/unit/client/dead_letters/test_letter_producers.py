"""Producers of letters are open while they are used, and for a minute behind that; the client is played."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.dead_letters.letter_producers import IDLE_S, LetterProducers
from pulsar_ray.client.dead_letters.letters import LetterTopics
from pulsar_ray.client.endpoint.ending import Ending
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.model.enums import ConsumerType

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
