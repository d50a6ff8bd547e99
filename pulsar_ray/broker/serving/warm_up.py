"""Imports that an actor may need, but not for its first message.

They are made when it has been up for a while.
"""

from __future__ import annotations

import asyncio
import gc
import threading

from pulsar_ray.numpy_on_demand import np

WARM_UP_S = 30.0


def warm_up_later(loop: asyncio.AbstractEventLoop) -> None:
    """Import later, beside the loop, so that no message waits for it. Thread-safe."""
    loop.call_soon_threadsafe(loop.call_later, WARM_UP_S, _start)


def _start() -> None:
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()


def _warm_up() -> None:
    _ = np.ndarray
    gc.freeze()
