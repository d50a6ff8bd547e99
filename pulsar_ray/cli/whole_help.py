"""A group of commands whose list in `--help` says each command's first sentence whole."""

from __future__ import annotations

import click


class WholeHelp(click.Group):
    """A group as click's, which cuts sentences off where the line ends."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands."""
        rows = [
            (name, command.get_short_help_str(limit=10_000))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
