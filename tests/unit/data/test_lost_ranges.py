from __future__ import annotations

import pytest

from pulsar_ray.data.planning.lost_ranges import LostRange, check_nothing_lost, lost_of
from pulsar_ray.errors import DataLost
from pulsar_ray.model.position import EARLIEST, LATEST, Position

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
    assert lost_of("t", asked, end, TRIMMED) == lost


def test_nothing_is_lost_of_a_log_that_nothing_was_trimmed_of() -> None:
    assert lost_of("t", Position(0, 0), LATEST, EARLIEST) is None
    check_nothing_lost([])


def test_the_error_names_topics_and_positions_but_not_hundreds() -> None:
    lost = [LostRange(f"t-partition-{number}", Position(5, 3), TRIMMED) for number in range(7)]
    with pytest.raises(DataLost, match=r"t-partition-0 from 5:3 to 5:9; .*of 2 more partitions") as caught:
        check_nothing_lost(lost)
    assert "fail_on_data_loss=False" in str(caught.value)
