"""`pulsar-ray brokers`: the nodes that store, and whether they work."""

from __future__ import annotations

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.whole_help import WholeHelp


@click.group(cls=WholeHelp)
def brokers() -> None:
    """List the nodes that store, and check that they really produce and consume."""


@brokers.command(name="list")
@pass_target
def list_brokers(target: Target) -> None:
    """Show the hosts of the nodes that store, one a line."""
    with target.asked() as admin:
        hosts = admin.brokers.list()
    for host in hosts:
        write_line(host)


@brokers.command()
@pass_target
def healthcheck(target: Target) -> None:
    """Publish a message on every node that stores, and read it back.

    The exit code is 1 if a node fails.
    """
    with target.asked() as admin:
        checked = admin.brokers.healthcheck()
    for health in checked:
        if health.problem:
            say(f"{health.host}: {health.problem}")
        else:
            times = f"published in {health.publish_ms:.1f} ms, read after {health.receive_ms:.1f} ms"
            write_line(f"{health.host}: ok, {times}")
    if not checked or any(health.problem for health in checked):
        raise click.exceptions.Exit(1)
