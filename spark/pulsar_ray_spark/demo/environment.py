"""What the demo changes in its process while it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

from pulsar_ray_spark.java import find_java


@contextmanager
def signals_raise() -> Iterator[ExitStack]:
    """Give a stack whose callbacks run at the end, whatever ends it; no signal cuts them short."""

    def raise_exit(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, raise_exit)
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


@contextmanager
def java_on_path() -> Iterator[None]:
    """A Ray that is started inside can start Spark's executors. Raises JavaNotFound."""
    before = os.environ.get("PATH", os.defpath)
    os.environ["PATH"] = f"{find_java().bin_directory}{os.pathsep}{before}"
    try:
        yield
    finally:
        os.environ["PATH"] = before
