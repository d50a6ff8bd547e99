"""The commands `policies` of `pulsar-ray namespaces` and `pulsar-ray topics`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.table import Table

from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.console import cell, out, write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.model.policies import POLICIES, AppliedPolicy, given_values

if TYPE_CHECKING:
    from pulsar_ray.admin.admin import Admin
    from pulsar_ray.admin.policies import Policies
import re

TAKES_NUMBERS = {"ignore_unknown_options": True}
"""Context settings of such a command: click would take "-1" for an option.

All of its arguments need a callback from here, or they would take mistyped options, too.
"""
_NUMBER = re.compile(r"-(\d|\.\d)[^=]*")


def policies_group(level: str, policies_of: Callable[[Admin], Policies]) -> click.Group:
    """Make the group `policies` with get, set and remove for namespaces or for topics."""
    subject = click.argument("subject", metavar=level.upper())

    @click.group(name="policies", cls=BrokerCommands, help=_help(level))
    def group() -> None:
        pass

    @group.command(name="get")
    @subject
    @click.argument("name", required=False)
    @click.option("--json", "as_json", is_flag=True, help="Values and their sources.")
    @pass_target
    def get(target: Target, subject: str, name: str | None, as_json: bool) -> None:
        """Show the effective policies, or one, and the level that each value comes from.

        One value a line with tabs between when it is not a terminal that reads them.
        """
        with target.asked() as admin:
            policies = policies_of(admin)
            found = policies.list(subject) if name is None else {name: policies.get(subject, name)}
        _show(subject, found, as_json=as_json)

    @group.command(name="set", context_settings=TAKES_NUMBERS)
    @click.argument("subject", metavar=level.upper(), callback=no_option)
    @click.argument("name", callback=no_option)
    @click.argument("values", nargs=-1, required=True, callback=numbers_or_no_option)
    @pass_target
    def set_policy(target: Target, subject: str, name: str, values: tuple[str, ...]) -> None:
        """Set the policy NAME: to VALUE, or to several written name=value.

        \b
        Examples:
          ... set SUBJECT retention retention_time_in_minutes=1440 retention_size_in_mb=-1
          ... set SUBJECT max_consumers 10
        """
        arguments = given_values(name, level, values)
        with target.asked() as admin:
            policies_of(admin).set(subject, name, **arguments)
        write_line(f"set {name} of {subject}")

    @group.command(name="remove")
    @subject
    @click.argument("name")
    @pass_target
    def remove(target: Target, subject: str, name: str) -> None:
        """Remove the policy NAME: from now on the level above decides."""
        with target.asked() as admin:
            policies_of(admin).remove(subject, name)
        write_line(f"removed {name} of {subject}")

    return group


def _help(level: str) -> str:
    names = "\n".join(
        f"  {policy.name}: {policy.doc}" for policy in POLICIES.values() if level in policy.levels
    )
    return (
        f"Show, set and remove what overrides the broker's settings for a {level}.\n\n\b\nPolicies:\n{names}"
    )


def _show(subject: str, found: dict[str, AppliedPolicy], *, as_json: bool) -> None:
    if as_json:
        rows = {name: {"value": policy.value, "sources": policy.sources} for name, policy in found.items()}
        click.echo(json.dumps(rows, indent=2))
        return
    lines = [
        (
            name if argument == name else f"{name}.{argument}",
            str(value),
            policy.sources[argument],
        )
        for name, policy in found.items()
        for argument, value in policy.value.items()
    ]
    if not out().is_terminal:
        for line in lines:
            click.echo("\t".join(map(one_line, line)).rstrip())
        return
    table = Table("policy", "value", "from", title=cell(subject))
    for line in lines:
        table.add_row(*map(cell, line))
    out().print(table)


def no_option(ctx: click.Context, _: click.Parameter, text: str) -> str:
    """Refuse an argument that looks like an option."""
    if text.startswith("-"):
        raise click.NoSuchOption(text.partition("=")[0], ctx=ctx)
    return text


def numbers_or_no_option(
    ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Refuse arguments that look like options, but not negative numbers."""
    for text in texts:
        if not _NUMBER.fullmatch(text):
            no_option(ctx, parameter, text)
    return texts
