"""A program in a pseudo-terminal, and what its terminal shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulsar_ray.testing.waiting import wait_until

ALTERNATE, MAIN = "\x1b[?1049h", "\x1b[?1049l"
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
_STYLES = re.compile(r"\x1b\[[0-9;]*[mK]")


class TerminalScreen:
    """Runs a program in a pseudo-terminal of its own. `shown` is its last picture, without colours."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        width: int = 80,
        height: int = 24,
    ) -> None:
        self._master, slave = pty.openpty()
        self.resize(width, height)
        self.modes: list[Any] = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "PYTHON_COLORS": "0", **(environment or {})},
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no thread has locks
        )
        self._written = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._master, 65536):
                self._written += data.decode(errors="replace")

    @property
    def written(self) -> str:
        """All bytes that came, as text."""
        return self._written

    def shown(self) -> list[str]:
        """The lines of the last whole picture."""
        pictures = self._written.split("\x1b[H")
        whole = [picture for picture in pictures[1:] if "\x1b[J" in picture]
        return _STYLES.sub("", whole[-1].split("\x1b[J")[0]).replace("\r", "").split("\n") if whole else []

    def text(self) -> str:
        """The last picture as one text."""
        return "\n".join(self.shown())

    def waits_for(self, text: str, within_s: float = 20.0) -> None:
        """Wait until the picture shows a text."""
        wait_until(lambda: text in self.text(), within_s, what=f"{text!r} on the screen")

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size; its program is told."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def ends_with(self, code: int, within_s: float = 20.0) -> None:
        """Wait for the program's end, and check that the terminal is as it was before."""
        assert self.process.wait(within_s) == code, self.written[-2000:]
        wait_until(lambda: self._written.count(MAIN) == self._written.count(ALTERNATE), what="the screen")
        if ALTERNATE in self._written:
            assert self._written.rindex(MAIN) > self._written.rindex(ALTERNATE)
            assert self._written.rindex(SHOW) > self._written.rindex(HIDE)
        assert termios.tcgetattr(self._slave) == self.modes

    def close(self) -> None:
        """End the program, whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)


@contextlib.contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str] | None = None, **size: int
) -> Iterator[TerminalScreen]:
    """A program in a pseudo-terminal, ended at the end."""
    screen = TerminalScreen(command, environment, **size)
    try:
        yield screen
    finally:
        screen.close()
