"""Signals, output and environment of the demo's process while it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from pulsar_ray_spark.java import find_java
from pulsar_ray_spark.program import redirected


@contextmanager
def signals_raise() -> Iterator[ExitStack]:
    """Give a stack whose callbacks run at the end, however it comes.

    No signal cuts the callbacks short.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    raise_at_sigterm()
    stack = ExitStack()
    try:
        yield stack
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        try:
            stack.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def raise_at_sigterm() -> None:
    """Let SIGTERM raise SystemExit.

    Call this again after `ray.init`, which puts in a handler that aborts.
    """

    def raise_exit(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, raise_exit)


@contextmanager
def output_into(path: Path) -> Iterator[None]:
    """Write the output of this process and its new children to a file.

    The output of children goes there afterwards too.

    Spark's JVM talks a lot on both its outputs.
    """
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with redirected({1: log, 2: log}):
            yield
    finally:
        os.close(log)


@contextmanager
def java_on_path() -> Iterator[None]:
    """A Ray that is started inside can start Spark's executors. Raises JavaNotFound."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{find_java().bin_directory}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
