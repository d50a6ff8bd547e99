"""`pulsar-ray namespaces`: create, list and delete them, and their policies."""

from __future__ import annotations

import click

from pulsar_ray.cli.administration.permissions import (
    add_permission_commands,
    add_subscription_commands,
)
from pulsar_ray.cli.administration.policies import policies_group
from pulsar_ray.cli.console import write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target
from pulsar_ray.model.policies import NAMESPACE


@click.group(cls=BrokerCommands)
def namespaces() -> None:
    """Create, list and delete namespaces, and set policies for their topics."""


namespaces.add_command(policies_group(NAMESPACE, lambda admin: admin.namespaces.policies))
add_permission_commands(namespaces, "NAMESPACE", lambda admin: admin.namespaces.permissions)
add_subscription_commands(namespaces)


@namespaces.of("tenant", name="list")
def list_namespaces(target: Target, tenant: str) -> None:
    """Show the namespaces of TENANT, one a line."""
    with target.asked() as admin:
        names = admin.namespaces.list(tenant)
    for name in names:
        write_line(name)


@namespaces.of()
@click.argument("namespace", metavar="TENANT/NAMESPACE")
def create(target: Target, namespace: str) -> None:
    """Create a namespace of a tenant that is there.

    \b
    Example:
      pulsar-ray namespaces create shop/orders
    """
    with target.asked() as admin:
        admin.namespaces.create(namespace)
    write_line(f"created {namespace}")


@namespaces.of()
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@click.option("-f", "--force", is_flag=True, help="With its topics and all their messages.")
def delete(target: Target, namespace: str, force: bool) -> None:
    """Delete a namespace with its policies."""
    with target.asked() as admin:
        admin.namespaces.delete(namespace, force)
    write_line(f"deleted {namespace}")


@namespaces.of()
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@click.option("-s", "--subscription", metavar="NAME", help="Whose backlog.  [default: of all]")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
def clear_backlog(target: Target, namespace: str, subscription: str | None, force: bool) -> None:
    """Acknowledge all that the topics of a namespace have stored by now."""
    if not force:
        click.confirm(f"Nobody will get what is in the backlogs of {namespace}. Go on?", abort=True)
    with target.asked() as admin:
        admin.namespaces.clear_backlog(namespace, subscription)
    write_line(f"cleared the backlogs of {namespace}")


@namespaces.of()
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@click.confirmation_option(prompt="Policies that stand in lost logs alone are gone then. Go on?")
def abandon_change_logs(target: Target, namespace: str) -> None:
    """Give up the logs of policies that lie on disks that are lost for good."""
    with target.asked() as admin:
        abandoned = admin.namespaces.abandon_change_logs(namespace)
    for name in abandoned:
        write_line(f"abandoned {name}")


@namespaces.of()
@click.argument("namespace", metavar="TENANT/NAMESPACE")
@click.option("--include-system-topic", is_flag=True, help="Also those that the broker keeps for itself.")
def topics(target: Target, namespace: str, include_system_topic: bool) -> None:
    """Show the topics of a namespace, one a line."""
    with target.asked() as admin:
        names = admin.topics.list(namespace, include_system_topic=include_system_topic)
    for name in names:
        write_line(name)
