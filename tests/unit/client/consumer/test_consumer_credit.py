"""When a consumer reports its room, and what it says."""

from __future__ import annotations

from pulsar_ray.client.consumer.consumer_credit import ConsumerCredit
from pulsar_ray.session.requests import Credit


def test_it_is_reported_when_half_of_the_window_is_consumed() -> None:
    credit = ConsumerCredit(3)
    assert credit.due_report(100, 0, 0) == Credit(3, 100, 0, 0)
    assert credit.due == 50
    assert credit.due_report(100, 49, 9) is None
    assert credit.due_report(100, 50, 9) == Credit(3, 150, 9, 50)
    assert credit.due == 100


def test_a_window_of_one_is_reported_message_by_message() -> None:
    credit = ConsumerCredit(3)
    assert credit.due_report(1, 0, 0) == Credit(3, 1, 0, 0)
    assert credit.due_report(1, 0, 1) is None
    assert credit.due_report(1, 1, 1) == Credit(3, 2, 1, 1)


def test_a_larger_window_is_reported_when_it_adds_half_of_itself() -> None:
    credit = ConsumerCredit(3)
    credit.due_report(0, 0, 0)
    assert credit.due_report(1, 0, 0) == Credit(3, 1, 0, 0)
    assert credit.due_report(100, 0, 0) == Credit(3, 100, 0, 0)
    assert credit.due_report(120, 0, 0) is None
    assert credit.due == 40


def test_a_smaller_window_is_reported_when_half_of_the_known_one_is_consumed() -> None:
    credit = ConsumerCredit(3)
    credit.due_report(100, 0, 0)
    assert credit.due_report(10, 49, 9) is None
    assert credit.due_report(10, 50, 9) == Credit(3, 60, 9, 50)


def test_credit_that_was_given_is_not_counted_back() -> None:
    credit = ConsumerCredit(3)
    credit.due_report(100, 0, 0)
    credit.due_report(10, 50, 9)
    assert credit.due == 95  # of the 100 that were said, the later half of 10 is left
    assert credit.due_report(10, 94, 9) is None
    assert credit.due_report(10, 95, 9) == Credit(3, 105, 9, 95)


def test_who_writes_anyway_reports_from_a_quarter_of_the_window_on() -> None:
    credit = ConsumerCredit(3)
    credit.due_report(100, 0, 0)
    assert credit.early_report(100, 24, 4) is None
    assert credit.early_report(100, 25, 4) == Credit(3, 125, 4, 25)
    assert credit.due == 75


def test_it_is_reported_at_once_where_nothing_is_known_of_it_or_when_progress_has_to_be() -> None:
    credit = ConsumerCredit(3)
    credit.due_report(100, 0, 0)
    assert credit.due_report(100, 7, 2, always=True) == Credit(3, 107, 2, 7)
    assert credit.due_report(100, 8, 2) is None
    credit.forget_reports()
    assert credit.due_report(100, 8, 2) == Credit(3, 108, 2, 8)
    credit.forget_reports()
    assert credit.early_report(100, 8, 2) == Credit(3, 108, 2, 8)
