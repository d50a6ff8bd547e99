"""Bringing up the broker whose catalog lies on this Ray's nodes, or making one on somebody's word."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from typing import Any

import ray

from pulsar_ray.actors.broker_actors import running_names
from pulsar_ray.actors.controller import Controller
from pulsar_ray.actors.founding import Word, decide
from pulsar_ray.actors.local_ray import node_id
from pulsar_ray.actors.look import look_everywhere
from pulsar_ray.actors.options import create
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.transport.names import CONTROLLER, NAMESPACE, is_store_name
from pulsar_ray.transport.ray_errors import translated

START_TIMEOUT_S = 90.0


def bring_up(settings: Settings, word: Word) -> dict[str, Any]:
    """As `start_broker`, by this process: what it starts inherits its job's environment.

    The controller is pinned to the node of the catalog: elsewhere it would find no topics.
    """
    here = node_id()
    reports, silent = look_everywhere(here, settings.data_dir)
    order = decide(reports, word, here=here, silent=silent, new_id=lambda: str(uuid.uuid4()))
    controller = create(Controller, CONTROLLER, order.node_id, settings.data_dir, settings, order)
    try:
        with translated("starting the broker"):
            described: dict[str, Any] = ray.get(controller.ready.remote(), timeout=START_TIMEOUT_S)
    except PulsarException as error:
        # One that is only restarting, or that somebody else started meanwhile, is left alone.
        if not error.retriable:
            ray.kill(controller)
            end_stores()
        raise
    return described


def end_stores() -> None:
    """End the stores that no controller cares for; one that was left would keep its data directory."""
    end_actors(name for name in running_names() if is_store_name(name))


def end_actors(names: Iterable[str]) -> bool:
    """End actors of the broker for good, as a crash would; False if there are none."""
    found = False
    for name in names:
        with contextlib.suppress(ValueError):  # it went just now
            ray.kill(ray.get_actor(name, namespace=NAMESPACE))
            found = True
    return found
