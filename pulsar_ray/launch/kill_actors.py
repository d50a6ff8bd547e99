"""Ending what is left of a broker whose controller does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import ray

from pulsar_ray.transport.actor_names import NAMESPACE, is_store_name
from pulsar_ray.transport.this_ray import running_names


def kill_stores() -> None:
    """End the stores that no controller cares for.

    A store that was left would keep its data directory.
    """
    kill_actors(name for name in running_names() if is_store_name(name))


def kill_actors(names: Iterable[str]) -> bool:
    """End actors of the broker for good, as a crash would; False without any."""
    found = False
    for name in names:
        with contextlib.suppress(ValueError):  # it went just now
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))
            found = True
    return found
