"""Groups of commands of a broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from pulsar_ray.cli.target import pass_target


class BrokerCommands(click.Group):
    """A group whose list in `--help` says each command's first sentence whole.

    A group of click's cuts sentences off where the line ends.
    """

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands."""
        rows = [
            (name, command.get_short_help_str(limit=10_000))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def of(self, *arguments: str, name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
        """Declare a command of these arguments; its function is given the target before them."""

        def declare(function: Callable[..., Any]) -> click.Command:
            function = pass_target(function)
            for argument in reversed(arguments):
                function = click.argument(argument)(function)
            return self.command(name)(function)

        return declare
