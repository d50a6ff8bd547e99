"""Starting and stopping the broker on the Ray cluster this process is connected to."""

from __future__ import annotations

from typing import Any

import ray

from pulsar_ray.actors.controller import Controller
from pulsar_ray.actors.options import create
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException
from pulsar_ray.transport.names import CONTROLLER, NAMESPACE
from pulsar_ray.transport.ray_errors import translated

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


def start_broker(settings: Settings) -> dict[str, Any]:
    """Start the broker, or find it running; returns where it stores.

    Raises what is wrong with the data directory.

    The controller is pinned to this node, because its file lies here: restarted elsewhere it would find no
    topics.
    """
    node_id = ray.get_runtime_context().get_node_id()
    controller = create(Controller, CONTROLLER, node_id, str(settings.data_dir), settings)
    try:
        with translated("starting the broker"):
            described: dict[str, Any] = ray.get(controller.ready.remote(), timeout=START_TIMEOUT_S)
    except PulsarException as error:
        # One that is only restarting, or that somebody else started meanwhile, is left alone.
        if not error.retriable:
            ray.kill(controller)
        raise
    return described


def stop_broker() -> bool:
    """Let every actor write what is pending and end them; False if no broker runs here."""
    try:
        controller = ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        return False
    with translated("stopping the broker"):
        ray.get(controller.shutdown.remote(), timeout=STOP_TIMEOUT_S)
    ray.kill(controller)
    return True
