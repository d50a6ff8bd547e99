"""Key presses change what is shown, without a terminal."""

from __future__ import annotations

import pytest

from pulsar_ray.cli.watching.top.columns import COLUMNS, View
from pulsar_ray.cli.watching.top.keys import Key
from pulsar_ray.cli.watching.top.state import MAX_FILTER_CHARS, TopState

NAMES = [f"t{number}" for number in range(10)]


def _press(state: TopState, *keys: Key | str, names: list[str] = NAMES, height: int = 4) -> None:
    for key in keys:
        state.press(key, names, height)


def _selected(state: TopState, names: list[str] = NAMES, height: int = 4) -> tuple[str, str]:
    """The selected row, and the first that is shown."""
    at, first = state.place(names, height)
    assert first <= at < first + height
    return names[at], names[first]


def test_the_selection_moves_and_the_rows_with_it() -> None:
    state = TopState()
    assert _selected(state) == ("t0", "t0")
    _press(state, Key.DOWN, "j", Key.DOWN)
    assert _selected(state) == ("t3", "t0")
    _press(state, Key.DOWN)
    assert _selected(state) == ("t4", "t1")
    _press(state, Key.PAGE_DOWN)
    assert _selected(state) == ("t7", "t4")
    _press(state, Key.UP, "k")
    assert _selected(state) == ("t5", "t4")
    _press(state, Key.END)
    assert _selected(state) == ("t9", "t6")
    _press(state, Key.DOWN)
    assert _selected(state) == ("t9", "t6")
    _press(state, Key.PAGE_UP, Key.PAGE_UP, Key.PAGE_UP, Key.PAGE_UP)
    assert _selected(state) == ("t0", "t0")
    _press(state, "G", "g")
    assert _selected(state) == ("t0", "t0")


def test_the_selection_stays_with_its_row() -> None:
    state = TopState()
    _press(state, Key.DOWN, Key.DOWN)
    assert _selected(state, ["t2", *NAMES[:2], *NAMES[3:]])[0] == "t2"
    # A row that is gone leaves the selection to one that is shown.
    gone = [name for name in NAMES if name != "t2"]
    assert _selected(state, gone)[0] in gone
    assert state.place([], 4) == (0, 0)
    _press(state, Key.DOWN, Key.ENTER, names=[])
    assert state.view is View.TOPICS


def test_a_terminal_of_one_line_still_has_a_selection() -> None:
    state = TopState()
    _press(state, Key.DOWN, Key.DOWN, height=1)
    assert _selected(state, height=1) == ("t2", "t2")


def test_enter_goes_down_and_escape_up_again() -> None:
    state = TopState()
    _press(state, Key.DOWN, Key.ENTER)
    assert (state.view, state.topic) == (View.SUBSCRIPTIONS, "t1")
    _press(state, Key.DOWN, Key.DOWN, Key.RIGHT, names=["a", "b", "c"])
    assert (state.view, state.topic, state.subscription) == (View.CONSUMERS, "t1", "c")
    _press(state, Key.ENTER, names=["consumer"])
    assert (state.view, state.subscription) == (View.CONSUMERS, "c")
    _press(state, Key.ESCAPE)
    assert (state.view, state.topic) == (View.SUBSCRIPTIONS, "t1")
    _press(state, Key.LEFT)
    assert (state.view, state.topic) == (View.TOPICS, "")
    assert _selected(state)[0] == "t1"
    _press(state, Key.BACKSPACE)
    assert not state.wants_quit


def test_sorting_goes_through_all_columns() -> None:
    state = TopState()
    assert state.sort[View.TOPICS] == "backlog"
    columns = [column.name for column in COLUMNS[View.TOPICS]]
    seen = []
    for _ in columns:
        _press(state, "s")
        seen.append(state.sort[View.TOPICS])
    assert sorted(seen) == sorted(columns)
    _press(state, "r")
    assert state.is_reversed[View.TOPICS]
    _press(state, "S")
    assert state.sort[View.TOPICS] == seen[-2]
    assert not state.is_reversed[View.TOPICS]
    # Each table has a sorting of its own.
    _press(state, Key.ENTER, "s")
    assert state.sort[View.TOPICS] == seen[-2]


def test_a_filter_is_typed_kept_and_taken_back() -> None:
    state = TopState()
    _press(state, "/", "o", "q", Key.BACKSPACE, "r", Key.UP)
    assert (state.filter, state.is_typing, state.wants_quit) == ("or", True, False)
    _press(state, Key.ENTER)
    assert (state.filter, state.is_typing) == ("or", False)
    _press(state, Key.ESCAPE)
    assert state.filter == ""
    _press(state, "/", *"x" * (MAX_FILTER_CHARS + 5))
    assert len(state.filter) == MAX_FILTER_CHARS
    _press(state, Key.ESCAPE)
    assert (state.filter, state.is_typing) == ("", False)


@pytest.mark.parametrize("key", ["q"])
def test_quitting(key: str) -> None:
    state = TopState()
    _press(state, key)
    assert state.wants_quit
    state = TopState(shows_help=True)
    _press(state, key)
    assert state.wants_quit


def test_help_and_pause() -> None:
    state = TopState()
    _press(state, "?")
    assert state.shows_help
    _press(state, "x")
    assert (state.shows_help, state.wants_quit) == (False, False)
    _press(state, "p")
    assert state.is_paused
    _press(state, " ")
    assert not state.is_paused
