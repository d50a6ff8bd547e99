"""The place of the user in the view; key presses change it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsar_ray.cli.watching.top.columns import COLUMNS, DEFAULT_SORT, View
from pulsar_ray.cli.watching.top.keys import Key

MAX_FILTER_CHARS = 100


@dataclass
class TopState:
    """The place in the view: which table, sorted how, which row is selected.

    A selection is a row's name, so that it stays with the row when others pass it.
    """

    topic: str = ""
    """Whose subscriptions are shown; empty: all topics."""
    subscription: str = ""
    """Whose consumers and keys are shown; empty: the topic's subscriptions."""
    sort: dict[View, str] = field(default_factory=lambda: dict(DEFAULT_SORT))
    is_reversed: dict[View, bool] = field(default_factory=dict)
    filter: str = ""
    is_typing: bool = False
    """Whether characters go into the filter."""
    is_paused: bool = False
    shows_help: bool = False
    wants_quit: bool = False
    selected: dict[View, str] = field(default_factory=dict)
    first_shown: dict[View, int] = field(default_factory=dict)

    @property
    def view(self) -> View:
        """Which table is shown."""
        if self.subscription:
            return View.CONSUMERS
        return View.SUBSCRIPTIONS if self.topic else View.TOPICS

    def place(self, names: Sequence[str], height: int) -> tuple[int, int]:
        """Return the places of the selected row and of the first of `height` rows.

        `names` are the rows in their order. A row that is gone leaves the selection where it was.
        """
        if not names:
            return 0, 0
        at, height = self.selected_at(names), max(height, 1)
        first = self.first_shown.get(self.view, 0)
        first = min(max(first, at - height + 1), at, max(len(names) - height, 0))
        self.first_shown[self.view] = first
        return at, first

    def selected_at(self, names: Sequence[str]) -> int:
        """Return the selected row's place among rows, of which there is at least one."""
        name = self.selected.get(self.view, "")
        return names.index(name) if name in names else min(self.first_shown.get(self.view, 0), len(names) - 1)

    def press(self, key: Key | str, names: Sequence[str], height: int) -> None:
        """Take a key press, where these rows are shown."""
        if self.is_typing:
            self._type(key)
        elif self.shows_help:
            self.shows_help = False
            self.wants_quit = key == "q"
        elif key in _MOVES:
            self._move(key, names, height)
        elif key is Key.ENTER or key is Key.RIGHT:
            self._enter(names, height)
        elif key in (Key.ESCAPE, Key.BACKSPACE, Key.LEFT):
            self._leave()
        else:
            self._command(key)

    def _type(self, key: Key | str) -> None:
        if key is Key.ENTER:
            self.is_typing = False
        elif key is Key.ESCAPE:
            self.is_typing, self.filter = False, ""
        elif key is Key.BACKSPACE:
            self.filter = self.filter[:-1]
        elif isinstance(key, str) and len(self.filter) < MAX_FILTER_CHARS:
            self.filter += key

    def _move(self, key: Key | str, names: Sequence[str], height: int) -> None:
        if not names:
            return
        at, _ = self.place(names, height)
        page = max(height - 1, 1)
        steps = {Key.UP: -1, "k": -1, Key.DOWN: 1, "j": 1, Key.PAGE_UP: -page, Key.PAGE_DOWN: page}
        if key in (Key.HOME, "g"):
            at = 0
        elif key in (Key.END, "G"):
            at = len(names) - 1
        else:
            at = min(max(at + steps[key], 0), len(names) - 1)
        self.selected[self.view] = names[at]
        self.place(names, height)

    def _enter(self, names: Sequence[str], height: int) -> None:
        if not names or self.view is View.CONSUMERS:
            return
        at, _ = self.place(names, height)
        self.selected[self.view] = names[at]
        if self.view is View.TOPICS:
            self.topic = names[at]
        else:
            self.subscription = names[at]
        # A row of another topic's table means nothing here.
        self.selected.pop(self.view, None)
        self.first_shown.pop(self.view, None)

    def _leave(self) -> None:
        if self.subscription:
            self.subscription = ""
        elif self.topic:
            self.topic = ""
        elif self.filter:
            self.filter = ""

    def _command(self, key: Key | str) -> None:
        view = self.view
        if key == "q":
            self.wants_quit = True
        elif key in ("?", "h"):
            self.shows_help = True
        elif key == "/":
            self.is_typing = view is View.TOPICS
        elif key in ("p", " "):
            self.is_paused = not self.is_paused
        elif key == "r":
            self.is_reversed[view] = not self.is_reversed.get(view, False)
        elif key in ("s", "S"):
            columns = [column.name for column in COLUMNS[view]]
            at = columns.index(self.sort[view])
            self.sort[view] = columns[(at + (1 if key == "s" else -1)) % len(columns)]
            self.is_reversed[view] = False


_MOVES = (
    Key.UP,
    Key.DOWN,
    Key.PAGE_UP,
    Key.PAGE_DOWN,
    Key.HOME,
    Key.END,
    "k",
    "j",
    "g",
    "G",
)
