"""The commands about permissions of `pulsar-ray namespaces` and `pulsar-ray topics`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pulsar_ray.cli.console import write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.security.authorization import ACTIONS

if TYPE_CHECKING:
    from pulsar_ray.admin.admin import Admin
    from pulsar_ray.admin.permissions import Permissions

_role = click.option("--role", required=True, help="The role, as tokens name it.")


def add_permission_commands(
    group: BrokerCommands, level: str, permissions_of: Callable[[Admin], Permissions]
) -> None:
    """Add the commands for namespaces or for topics."""
    subject = click.argument("subject", metavar=level)

    @group.command("permissions", help=f"Show the actions of each role on a {level.lower()} as JSON.")
    @subject
    @pass_target
    def permissions(target: Target, subject: str) -> None:
        with target.asked() as admin:
            found = permissions_of(admin).list(subject)
        write_line(json.dumps(found))

    @group.command("grant-permission", help=f"Give a role actions on a {level.lower()}.")
    @subject
    @_role
    @click.option(
        "--actions", required=True, metavar="NAMES", help=f"With commas between them: {', '.join(ACTIONS)}."
    )
    @pass_target
    def grant(target: Target, subject: str, role: str, actions: str) -> None:
        with target.asked() as admin:
            permissions_of(admin).grant(subject, role, _names(actions))
        write_line(f"granted {actions} on {subject} to {role}")

    @group.command("revoke-permission", help=f"Take all actions on a {level.lower()} from a role.")
    @subject
    @_role
    @pass_target
    def revoke(target: Target, subject: str, role: str) -> None:
        with target.asked() as admin:
            permissions_of(admin).revoke(subject, role)
        write_line(f"revoked what {role} had on {subject}")


def add_subscription_commands(group: BrokerCommands) -> None:
    """Add the commands about who may consume which subscription."""
    namespace = click.argument("namespace", metavar="TENANT/NAMESPACE")
    subscription = click.option(
        "-s", "--subscription", required=True, metavar="NAME", help="The subscription that is meant."
    )

    @group.command("subscription-permissions")
    @namespace
    @pass_target
    def show(target: Target, namespace: str) -> None:
        """Show the roles of subscriptions that not everybody may consume, as JSON."""
        with target.asked() as admin:
            found = admin.namespaces.permissions.subscriptions(namespace)
        write_line(json.dumps(found))

    @group.command("grant-subscription-permission")
    @namespace
    @subscription
    @click.option("--roles", required=True, metavar="NAMES", help="With commas between them.")
    @pass_target
    def grant(target: Target, namespace: str, subscription: str, roles: str) -> None:
        """Let roles consume a subscription, and no others but those that were named before."""
        with target.asked() as admin:
            admin.namespaces.permissions.grant_subscription(namespace, subscription, _names(roles))
        write_line(f"granted {subscription} of {namespace} to {roles}")

    @group.command("revoke-subscription-permission")
    @namespace
    @subscription
    @_role
    @pass_target
    def revoke(target: Target, namespace: str, subscription: str, role: str) -> None:
        """Take a role from those of a subscription; without any it is open to all."""
        with target.asked() as admin:
            admin.namespaces.permissions.revoke_subscription(namespace, subscription, role)
        write_line(f"revoked {subscription} of {namespace} from {role}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
