"""Tells an actor that stands still from one that is slow, dead or starting."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.exceptions import RayError

from pulsar_ray.lane.await_within import within


async def is_silent(handle: Any, *deadlines_s: float) -> bool:
    """Return whether none of as many probes is answered in time.

    An actor that is dead or restarts is not silent.
    """
    for deadline_s in deadlines_s:
        try:
            await within(handle.probe.remote(), deadline_s)
        except (asyncio.TimeoutError, TimeoutError):
            continue
        except RayError:
            pass
        return False
    return True
