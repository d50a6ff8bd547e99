"""Keeps the newest answer of a feed, and replaces a feed that ended."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pulsar_ray.cli.watching.top.screen import Figures

AGAIN_S = 1.0
"""A feed that ended is followed by another one so much later."""
SILENT_S = 10.0
"""A request that is not answered in this time is said to be unanswered."""
END_S = 2.0
_KEPT_BYTES = 4000


def feed_command(service_url: str, data_dir: str | None) -> list[str]:
    """The command that runs a feed in a process of its own."""
    return [sys.executable, "-m", "pulsar_ray.cli.watching.top.feed", service_url, data_dir or ""]


class Source:
    """Asks a feed in a thread, again and again, for what `request` says then.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        request: Callable[[], Mapping[str, Any]],
        interval_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._command = list(command)
        self._request = request
        self._interval_s = interval_s
        self._changed = changed
        self._lock = threading.Lock()
        self._answer: Mapping[str, Any] = {}
        self._answered_s = 0.0
        self._asked_s: float | None = None
        self._problem = ""
        self._hurry = threading.Event()
        self._over = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def hurry(self) -> None:
        """Ask at once: something else is wanted."""
        self._hurry.set()

    def figures(self) -> Figures:
        """The newest answer."""
        with self._lock:
            now_s = time.monotonic()
            problem = self._problem
            if not problem and self._asked_s is not None and now_s - self._asked_s > SILENT_S:
                problem = f"no answer for {now_s - self._asked_s:.0f} s"
            return Figures(self._answer, now_s - self._answered_s, problem)

    def end(self) -> None:
        """End the feed, and wait for that a little."""
        self._over.set()
        self._hurry.set()
        with self._lock:
            process = self._process
        if process is not None:
            _end(process)
        self._thread.join(END_S)

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                # Ctrl-C is the view's matter, and not that of its feed.
                process = self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
            said = _Tail(process)
            try:
                problem = self._ask(process)
            except (OSError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
            _end(process)
            self._tell(problem or said.last_line() or f"the feed ended with {process.returncode}")
            self._hurry.clear()
            self._over.wait(AGAIN_S)

    def _ask(self, process: subprocess.Popen[str]) -> str:
        """Ask until the feed ends; returns why it did, as far as it said so."""
        assert process.stdin is not None
        assert process.stdout is not None
        while not self._over.is_set():
            self._hurry.clear()
            with self._lock:
                self._asked_s = time.monotonic()
            # One that has ended has said why.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(self._request()) + "\n")
                process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                return ""
            answer = json.loads(line)
            if "problem" in answer:
                return str(answer["problem"])
            with self._lock:
                self._answer, self._answered_s = answer, time.monotonic()
                self._asked_s, self._problem = None, ""
            self._changed()
            self._hurry.wait(self._interval_s)
        return ""

    def _tell(self, problem: str) -> None:
        with self._lock:
            self._problem, self._asked_s = problem, None
        self._changed()


def _end(process: subprocess.Popen[str]) -> None:
    """End a feed, by force if it does not end by itself."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if stream is not None:
                stream.close()


class _Tail:
    """Keeps the last lines that a process writes to standard error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._text = ""
        self._stream = process.stderr
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._stream is not None
        with self._stream, contextlib.suppress(ValueError, OSError):
            for line in self._stream:
                self._text = (self._text + line)[-_KEPT_BYTES:]

    def last_line(self) -> str:
        """The last line that is not empty."""
        self._thread.join(1.0)
        lines = [line.strip() for line in self._text.splitlines() if line.strip()]
        return lines[-1] if lines else ""
