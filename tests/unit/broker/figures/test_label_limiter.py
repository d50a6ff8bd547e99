"""Labels of metrics are bounded, and are text that Ray and Prometheus take."""

from __future__ import annotations

import pytest

from pulsar_ray.broker.figures.label_limiter import MAX_LABEL_CHARS, MOST_LIVES, LabelLimiter, label_text


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("persistent://public/default/orders", "persistent://public/default/orders"),
        ('say "hi"\n', "say %22hi%22%0A"),
        ("back\\slash", "back%5Cslash"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("50%", "50%25"),
        ("a b{c}=d", "a b{c}=d"),
        ("", ""),
    ],
)
def test_a_label_is_plain_ascii(name: str, label: str) -> None:
    assert label_text(name) == label
    assert label.isascii()


def test_no_two_names_have_the_same_label() -> None:
    names = ["a\n", "a%0A", "a%250A", 'a"', "a%22", "ä", "%C3%A4"]
    assert len({label_text(name) for name in names}) == len(names)


def test_names_beyond_the_limit_share_one_label() -> None:
    limiter = LabelLimiter(2)
    assert [limiter.label(name, name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


def test_a_limit_of_0_gives_no_labels() -> None:
    assert LabelLimiter(0).label("a", "a") == "other"


def test_who_may_not_take_a_label_keeps_one_that_it_has() -> None:
    limiter = LabelLimiter(5)
    assert limiter.label("a", "a", may_take=False) == "other"
    limiter.label("a", "a")
    assert limiter.label("a", "a", may_take=False) == "a"


def test_released_labels_go_to_others() -> None:
    limiter = LabelLimiter(1)
    limiter.label("a", "a")
    limiter.keep_only({"b"})
    assert limiter.label("b", "b") == "b"
    assert limiter.label("a", "a") == "other"


def test_names_that_come_and_go_are_bounded_too() -> None:
    limiter = LabelLimiter(10)
    given = set()
    for number in range(1000):
        given.add(limiter.label(number, str(number)))
        limiter.keep_only(set())
    assert len(given - {"other"}) == MOST_LIVES * 10
    # One that was given before may come back.
    assert limiter.label(3, "3") == "3"


def test_a_very_long_name_has_no_label_of_its_own() -> None:
    assert LabelLimiter(5).label("a", "x" * (MAX_LABEL_CHARS + 1)) == "other"
