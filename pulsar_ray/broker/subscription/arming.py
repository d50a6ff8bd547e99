"""Whether a dispatcher waits for new entries, as its partition was last sent."""

from __future__ import annotations

from collections.abc import Callable


class Arming:
    """Sends changes through `follow`, and repeats while armed what may have been lost."""

    def __init__(self, follow: Callable[[bool], None]) -> None:
        self._follow = follow
        self.is_armed = False

    def update(self, is_wanted: bool) -> None:
        """Send whether new entries are wanted, if that has changed."""
        if is_wanted != self.is_armed:
            self.is_armed = is_wanted
            self._follow(is_wanted)

    def repeat(self) -> None:
        """Send again that new entries are wanted, if they are."""
        if self.is_armed:
            self._follow(True)
