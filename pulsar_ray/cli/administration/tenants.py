"""`pulsar-ray tenants`: create, list, show, change and delete them."""

from __future__ import annotations

import json

import click

from pulsar_ray.cli.console import write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target

_roles = click.option("-r", "--admin-roles", default="", help="Names with commas between them.")
_clusters = click.option("-c", "--allowed-clusters", default="", help="Names with commas between them.")


@click.group(cls=BrokerCommands)
def tenants() -> None:
    """Create, list and delete tenants, which namespaces belong to."""


@tenants.of(name="list")
def list_tenants(target: Target) -> None:
    """Show all tenants, one a line."""
    with target.asked() as admin:
        names = admin.tenants.list()
    for name in names:
        write_line(name)


@tenants.of("tenant")
def get(target: Target, tenant: str) -> None:
    """Show the roles and clusters of TENANT as JSON."""
    with target.asked() as admin:
        found = admin.tenants.get(tenant)
    click.echo(json.dumps(found, indent=2))


@tenants.of("tenant")
@_roles
@_clusters
def create(target: Target, tenant: str, admin_roles: str, allowed_clusters: str) -> None:
    """Create TENANT. Its admin roles may administer it by HTTP; clusters are only shown."""
    with target.asked() as admin:
        admin.tenants.create(
            tenant, admin_roles=_names(admin_roles), allowed_clusters=_names(allowed_clusters)
        )
    write_line(f"created {tenant}")


@tenants.of("tenant")
@_roles
@_clusters
def update(target: Target, tenant: str, admin_roles: str, allowed_clusters: str) -> None:
    """Replace the roles and clusters of TENANT."""
    with target.asked() as admin:
        admin.tenants.update(
            tenant, admin_roles=_names(admin_roles), allowed_clusters=_names(allowed_clusters)
        )
    write_line(f"updated {tenant}")


@tenants.of("tenant")
@click.option("-f", "--force", is_flag=True, help="With its namespaces, topics and all their messages.")
def delete(target: Target, tenant: str, force: bool) -> None:
    """Delete TENANT."""
    with target.asked() as admin:
        admin.tenants.delete(tenant, force)
    write_line(f"deleted {tenant}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
