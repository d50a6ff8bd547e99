from __future__ import annotations

import pytest

from pulsar_ray.data.planning.plan import LostRange, beginning_of, check_nothing_lost, lost_of
from pulsar_ray.errors import DataLost
from pulsar_ray.model.message_id import EARLIEST, LATEST, Position

TRIMMED = Position(5, 9)


@pytest.mark.parametrize(
    ("asked", "end", "lost"),
    [
        (Position(5, 3), LATEST, LostRange("t", Position(5, 3), TRIMMED)),
        (TRIMMED, LATEST, LostRange("t", TRIMMED, TRIMMED)),
        (Position(4, 0), Position(5, 2), LostRange("t", Position(4, 0), Position(5, 2))),
        (TRIMMED.next(), LATEST, None),
        (Position(6, 0), LATEST, None),
        (Position(4, 0), Position(4, 0), None),
        (EARLIEST, LATEST, None),
    ],
)
def test_lost_is_what_was_asked_for_by_its_place_and_is_trimmed(
    asked: Position, end: Position, lost: LostRange | None
) -> None:
    assert lost_of("t", asked, end, TRIMMED, 0) == lost


OLD, NEW = beginning_of(4), beginning_of(9)
MADE_ANEW = "made anew since"


@pytest.mark.parametrize(
    ("asked", "end", "is_lost"),
    [
        (OLD, LATEST, True),
        (OLD, NEW.next(), True),
        (OLD, OLD.next(), True),
        (EARLIEST, OLD.next(), True),
        (NEW, NEW.next(), False),
        (EARLIEST, NEW.next(), False),
        (EARLIEST, LATEST, False),
    ],
)
def test_what_was_asked_for_of_a_topic_that_was_deleted_is_lost(
    asked: Position, end: Position, is_lost: bool
) -> None:
    """Though nothing is trimmed of the topic that has its name now."""
    lost = lost_of("t", asked, end, EARLIEST, 9)
    assert (lost is not None) == is_lost
    assert lost is None or MADE_ANEW in str(lost)


def test_nothing_is_lost_of_a_log_that_nothing_was_trimmed_of() -> None:
    assert lost_of("t", Position(0, 0), LATEST, EARLIEST, 0) is None
    check_nothing_lost([])


def test_the_error_names_topics_and_positions_but_not_hundreds() -> None:
    lost = [LostRange(f"t-partition-{number}", Position(5, 3), TRIMMED) for number in range(7)]
    with pytest.raises(DataLost, match=r"t-partition-0 from 5:3 to 5:9; .*of 2 more partitions") as caught:
        check_nothing_lost(lost)
    assert "fail_on_data_loss=False" in str(caught.value)
