"""Tells the controller of a partition's new directory, and asks it whether there was one."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from threading import Thread
from typing import Any

from pulsar_ray.errors import PulsarException, TopicNotFound
from pulsar_ray.managed_ledger.log.manifest.manifest_log import MANIFEST
from pulsar_ray.transport.ray_cluster import RayCluster
from pulsar_ray.transport.this_ray import was_restarted

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0


def must_be_there(partition: str, directory: Path, *, was_known: bool) -> bool:
    """Whether a missing directory is a loss, asked in the constructor of the partition's actor.

    `was_known`: the catalog had it when the actor was created. A former life of the actor may have died
    before it made the directory, and behind that: the controller knows, once it answers.
    """
    if was_known or not was_restarted():
        return was_known
    if any(directory.glob(f"{MANIFEST}-*")):
        return True
    try:
        return bool(_asked("was_made", partition))
    except TopicNotFound:
        return True  # the controller ends this actor


def tell_made(partition: str) -> None:
    """Tell the controller, in a thread until it answers, that the directory is there, durably."""
    Thread(target=_tell, args=(partition,), name="made", daemon=True).start()


def _tell(partition: str) -> None:
    try:
        _asked("made", partition)
    except TopicNotFound:
        return  # it was deleted meanwhile


def _asked(method: str, partition: str) -> Any:
    cluster = RayCluster()
    while True:
        try:
            return cluster.controller(method, partition)
        except TopicNotFound:
            raise
        except PulsarException as error:
            logger.warning("%s: the controller does not answer yet: %s", method, error)
            time.sleep(ASK_AGAIN_S)
