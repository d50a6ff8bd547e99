"""Tells an actor that stands still from one that is slow, dead or starting."""

from __future__ import annotations

from pulsar_ray.actors.actor_system import ActorHandle
from pulsar_ray.errors import PulsarException, Timeout


async def is_silent(handle: ActorHandle, *deadlines_s: float) -> bool:
    """Return whether none of as many probes is answered in time.

    An actor that is dead or restarts is not silent.
    """
    for deadline_s in deadlines_s:
        try:
            await handle.call("probe", within_s=deadline_s)
        except Timeout:
            continue
        except PulsarException:
            pass
        return False
    return True
