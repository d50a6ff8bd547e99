"""Arguments of commands that may be negative numbers."""

from __future__ import annotations

import re

import click

TAKES_NUMBERS = {"ignore_unknown_options": True}
"""Context settings of such a command: click would take "-1" for an option.

All of its arguments need a callback from here, or they would take mistyped options, too.
"""
_NUMBER = re.compile(r"-(\d|\.\d)[^=]*")


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
