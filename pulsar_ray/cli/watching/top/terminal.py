"""A terminal that is given back as it was, however the view ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from pulsar_ray.cli.watching.top.keys import Key, KeyDecoder

SEQUENCE_S = 0.05
"""The rest of a key's bytes follows within this time, or it was Escape alone."""
USUAL_SIZE = (80, 24)
"""The size of a terminal that does not say it, as serial lines do not."""
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"


class Ended(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    """Draws on the alternate screen, and reads keys as they are pressed.

    Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP raise Ended; Ctrl-Z gives the terminal back until the
    process goes on.
    """

    def __init__(self, keyboard: int, console: Console) -> None:
        self._keyboard = keyboard
        self._console = console
        self._keys = KeyDecoder()
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        self._is_to_stop = False

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Take the terminal for a while."""
        before: dict[signal.Signals, Any] = {}
        handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
            **dict.fromkeys(_ENDING, self._end),
            signal.SIGTSTP: self._stop,
            signal.SIGWINCH: self._resized,
        }
        modes = termios.tcgetattr(self._keyboard)
        try:
            for number, handler in handlers.items():
                before[number] = signal.signal(number, handler)
            self._enter()
            yield
        finally:
            self._leave(modes)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _enter(self) -> None:
        tty.setcbreak(self._keyboard)
        self._write(_ENTER)

    def _leave(self, modes: list[Any]) -> None:
        # The modes first: writing fails where the terminal is gone.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, modes)
        with contextlib.suppress(OSError):
            self._write(_LEAVE)

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

    def _end(self, number: int, _frame: FrameType | None) -> None:
        raise Ended(number)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._is_to_stop = True
        self.wake()

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self.wake()

    def wake(self) -> None:
        """Let `read_keys` return; from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._woken, b".")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of now."""
        width, height = os.get_terminal_size(self._keyboard)
        return width or USUAL_SIZE[0], height or USUAL_SIZE[1]

    def draw(self, picture: Text) -> None:
        """Show a picture of the whole screen; each line is written over the former one."""
        # Rich would ask the environment, which knows nothing of a terminal that was resized.
        self._console.size = ConsoleDimensions(*self.size)
        with self._console.capture() as drawn:
            self._console.print(picture, end="", no_wrap=True)
        lines = drawn.get().split("\n")
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def read_keys(self, timeout_s: float) -> list[Key | str]:
        """Wait so long for keys, or until `wake`. Raises EOFError once the keyboard is gone."""
        if self._is_to_stop:
            self._suspend()
        wait_s = SEQUENCE_S if self._keys.is_waiting else timeout_s
        ready, _, _ = select.select([self._keyboard, self._wake], [], [], wait_s)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if self._keyboard in ready:
            try:
                data = os.read(self._keyboard, 1024)
            except OSError:
                data = b""
            if not data:
                raise EOFError
            return self._keys.feed(data)
        return self._keys.flush() if self._keys.is_waiting and not ready else []

    def _suspend(self) -> None:
        self._is_to_stop = False
        modes = termios.tcgetattr(self._keyboard)
        modes[3] |= termios.ICANON | termios.ECHO
        self._leave(modes)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()
