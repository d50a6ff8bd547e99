"""`pulsar-ray wait`: until the broker and all of its stores serve."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from pulsar_ray.cli.broker import STORES_AWAY
from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.parameters import FiniteRange
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import ShownProgress, progress
from pulsar_ray.errors import CatalogMissing, ConnectError, PulsarException
from pulsar_ray.launch.connect import join_ray
from pulsar_ray.launch.lost_catalog import asked_controller
from pulsar_ray.transport.ray_cluster import RayCluster

LOOK_S = 1.0
NO_BROKER = 1


@click.command()
@click.option(
    "--stores",
    type=click.IntRange(min=1),
    help="Wait for at least so many stores, instead of those that `start --expect-stores` said.",
)
@click.option(
    "--timeout-seconds",
    type=FiniteRange(min=0.0),
    default=300.0,
    show_default=True,
    help="Give up after so long.",
)
@pass_target
def wait(target: Target, stores: int | None, timeout_seconds: float) -> None:
    """Wait until the broker of the Ray cluster here and its stores serve.

    All are those that were ever taken in and hold partitions, and as many as are expected. Starts nothing;
    every change is said. Exits with 0 if all serve, with 3 if the broker runs by the deadline and not all of
    its stores do, and with 1 if no broker runs then.

    \b
    Example:
      pulsar-ray start --expect-stores 3 && pulsar-ray wait --timeout-seconds 120
    """
    if target.service_url == "local":
        raise ConnectError(
            "an embedded broker has one store, which serves with it: `wait` is for a Ray cluster"
        )
    deadline = time.monotonic() + timeout_seconds
    last = ""
    with progress("waiting for the broker") as shown:
        while True:
            described, why = _looked(target, max(deadline - time.monotonic(), LOOK_S))
            lacks = missing(described, stores) if described is not None else [why]
            if not lacks:
                break
            last = _said(shown, "; ".join(lacks), last)
            if time.monotonic() + LOOK_S > deadline:
                say(f"not all serve after {timeout_seconds:g} s: {'; '.join(lacks)}")
                raise click.exceptions.Exit(NO_BROKER if described is None else STORES_AWAY)
            time.sleep(LOOK_S)
    assert described is not None
    write_line(f"the broker and its {len(described['stores'])} stores serve")


def _looked(target: Target, timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """The broker's description of itself, or why there is none yet."""
    try:
        if not join_ray(target.service_url):
            return None, "no Ray cluster runs on this machine"
        described = asked_controller(partial(RayCluster().describe_broker, timeout_s))
    except (ConnectError, CatalogMissing) as error:  # the node of the catalog may come
        return None, error.text
    except PulsarException as error:
        if not error.retriable:
            raise
        return None, error.text
    return described, "no broker runs on this Ray cluster"


def missing(described: Mapping[str, Any], wanted: int | None) -> list[str]:
    """Say what does not serve yet; empty if all does.

    `wanted` is the number of stores, None for as many as are expected.
    """
    there, wanted = len(described["stores"]), wanted or described["expected_stores"]
    lacks = [f"{there} of {wanted} stores serve"] if there < wanted else []
    lacks += [
        f"store {store['store_id']} of {store['host']} with {store['partitions']} partitions is away"
        for store in described["away_stores"]
    ]
    lost = (store for store in described["refused_stores"] if store["is_lost"])
    return [*lacks, *(f"no store works on {store['host']}: {store['reason']}" for store in lost)]


def _said(shown: ShownProgress, what: str, last: str) -> str:
    if what != last:
        shown.between(lambda: say(what))
    return what
