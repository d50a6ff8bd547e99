"""Runs calls that may block for long on threads of their own.

They find and attach to actors, and close.

Not on the loop's default executor: full of a program's own work it would keep ours waiting, and at the end of
the program it waits for threads that wait for a broker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(
    function: Callable[..., T], *arguments: Any, undo: Callable[[T], object] | None = None
) -> T:
    """Call `function` on a thread; the loop goes on meanwhile.

    Returns or raises what it does.

    If the caller is cancelled, the thread goes on to its end and `undo` gets what it returned.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[T] = loop.create_future()

    def answer(value: Any, error: BaseException | None) -> None:
        if answered.done():
            if error is None and undo is not None:
                _start(undo, value)
        elif error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(value)

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = function(*arguments)
        except BaseException as raised:  # noqa: BLE001
            error = raised
        try:
            loop.call_soon_threadsafe(answer, value, error)
        except RuntimeError:  # the loop was closed meanwhile
            if error is None and undo is not None:
                undo(value)  # type: ignore[arg-type]

    _start(run)
    try:
        return await answered
    except asyncio.CancelledError:
        # The answer may have come in the same turn of the loop.
        if undo is not None and not answered.cancelled() and answered.exception() is None:
            _start(undo, answered.result())
        raise


def _start(function: Callable[..., object], *arguments: object) -> None:
    threading.Thread(target=function, args=arguments, name="pulsar-ray-control", daemon=True).start()
