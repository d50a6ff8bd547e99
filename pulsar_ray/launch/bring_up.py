"""Bring up the broker whose catalog lies on this Ray's nodes.

A new catalog is made on somebody's word only.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import ray

from pulsar_ray.actors.ray_actors import RayActors
from pulsar_ray.broker.catalog.founding import StartPermission, decide, is_for_cluster
from pulsar_ray.config import OFF, Settings
from pulsar_ray.errors import BrokerNotFounded, PulsarException
from pulsar_ray.launch.kill_actors import kill_stores
from pulsar_ray.launch.lost_catalog import refuse_without_controller
from pulsar_ray.launch.node_reports import node_reports
from pulsar_ray.transport.ray_calls import translated
from pulsar_ray.transport.this_ray import head_node_id, is_ray_of_a_program, node_id

START_TIMEOUT_S = 90.0


def bring_up(settings: Settings, word: StartPermission) -> dict[str, Any]:
    """Start the broker as `start_broker` does, in this process.

    Actors that it starts inherit its job's environment.

    The controller is pinned to the node of the catalog: elsewhere it would find no topics.
    """
    here = node_id()
    reports, silent = node_reports(here, settings.data_dir)
    try:
        order = decide(
            reports, word, here=here, head=head_node_id(), silent=silent, new_id=lambda: str(uuid.uuid4())
        )
    except BrokerNotFounded:
        refuse_without_controller()
        raise
    if order.kind == "found":
        # Nothing lies in these directories, but perhaps the broker of others runs, whose catalog is away.
        refuse_without_controller()
    if settings.remote_url == OFF and (noted := [r.remote_url for r in reports if r.remote_url]):
        # A start that does not name the object store is no word to ship nothing there any more.
        settings = settings.replace(remote_url=noted[0])
    is_of_cluster = not is_ray_of_a_program() and is_for_cluster(order, word, reports)
    order = dataclasses.replace(order, is_of_ray_cluster=is_of_cluster)
    controller = RayActors().begin_controller(settings.data_dir, settings, order).raw
    try:
        with translated("starting the broker"):
            described: dict[str, Any] = ray.get(controller.ready.remote(), timeout=START_TIMEOUT_S)
    except PulsarException as error:
        # One that is only restarting, or that somebody else started meanwhile, is left alone.
        if not error.retriable:
            ray.kill(controller)
            kill_stores()
        raise
    return described
