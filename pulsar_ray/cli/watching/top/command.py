"""`pulsar-ray top`: topics, subscriptions and consumers, live."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
from rich.console import Console

from pulsar_ray.cli.console import INTERRUPTED
from pulsar_ray.cli.parameters import FiniteRange
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import progress
from pulsar_ray.cli.watching.top.columns import COLUMNS, DEFAULT_SORT, View
from pulsar_ray.cli.watching.top.screen import HEAD_LINES, Figures, draw, row_names, rows_that_fit
from pulsar_ray.cli.watching.top.source import Source, feed_command
from pulsar_ray.cli.watching.top.state import TopState
from pulsar_ray.cli.watching.top.terminal import Ended, Terminal

MAX_ROWS = 1000
REDRAW_S = 1.0
ONCE_WIDTH = 160
"""Of what is printed where no terminal says how wide it is."""


@click.command()
@click.argument("topic", required=False)
@click.option("-s", "--subscription", help="Show its consumers, and the keys that wait.")
@click.option("-f", "--filter", "filter_", default="", metavar="TEXT", help="Topics whose names contain it.")
@click.option(
    "--sort",
    type=click.Choice([column.name for column in COLUMNS[View.TOPICS]]),
    default=DEFAULT_SORT[View.TOPICS],
    show_default=True,
    help="By which column topics are sorted.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, MAX_ROWS),
    default=200,
    show_default=True,
    help="At most so many topics.",
)
@click.option(
    "-i",
    "--interval",
    type=FiniteRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Print once, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and end.")
@pass_target
def top(
    target: Target,
    topic: str | None,
    subscription: str | None,
    filter_: str,
    sort: str,
    limit: int,
    interval: float,
    once: bool,
    as_json: bool,
) -> None:
    """Watch topics, subscriptions and consumers in the terminal.

    Shows rates, backlogs with the age of the oldest message, who holds messages unacknowledged, and what
    stands still and why. Wakes no topic that sleeps, and starts no broker. TOPIC is where it begins. Keys:
    arrows and enter open a topic or a subscription, escape goes back, s sorts, / filters, q quits, ? shows
    all of them.

    Without a terminal give --once or --json.

    \b
    Examples:
      pulsar-ray top
      pulsar-ray top orders -s billing
      pulsar-ray top --once --filter orders
      pulsar-ray top --json | jq '.overview.topics[] | select(.problem != "")'
    """
    if subscription and not topic:
        raise click.UsageError("--subscription is one of a topic: give the TOPIC, too")
    state = TopState(topic=_full_name(topic), subscription=subscription or "", filter=filter_)
    state.sort[View.TOPICS] = sort
    if once or as_json:
        _print_once(target, state, limit, as_json=as_json)
    elif not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise click.UsageError("this is no terminal to show it in: give --once or --json")
    else:
        _watch(target, state, limit, interval)


def _full_name(topic: str | None) -> str:
    from pulsar_ray.model.topic_name import TopicName  # noqa: PLC0415 - after the options are checked

    return TopicName.parse(topic).full if topic else ""


def _request(state: TopState, limit: int) -> dict[str, Any]:
    return {
        "filter": state.filter,
        "sort": state.sort[View.TOPICS],
        "limit": limit,
        "topic": state.topic,
        "subscription": state.subscription,
    }


def _print_once(target: Target, state: TopState, limit: int, *, as_json: bool) -> None:
    from pulsar_ray.cli.watching.top.feed import Feed, check_runs  # noqa: PLC0415 - it imports Ray

    with progress("waiting for the broker"):
        check_runs(target.service_url, target.data_dir)
        with target.admin() as admin:
            answer = Feed(admin).answer(_request(state, limit))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        height = HEAD_LINES + len(row_names(state, answer)) + len(answer.get("hashes", ())) + 3
        width = Console().width if sys.stdout.isatty() else ONCE_WIDTH
        # The last line has the keys.
        for line in draw(state, Figures(answer), width, height).plain.split("\n")[:-1]:
            if line.strip():
                click.echo(line.rstrip())
    if "missing" in answer:
        raise click.ClickException(answer["missing"])


def _watch(target: Target, state: TopState, limit: int, interval_s: float) -> None:
    """Show the view until the user ends it."""
    terminal = Terminal(sys.stdin.fileno(), Console(highlight=False))
    command = feed_command(target.service_url, target.data_dir)
    source = Source(command, lambda: _request(state, limit), interval_s, terminal.wake)
    try:
        with terminal.taken():
            source.start()
            _follow(terminal, source, state)
    except (KeyboardInterrupt, EOFError):
        raise click.exceptions.Exit(INTERRUPTED) from None
    except Ended as ended:
        raise click.exceptions.Exit(128 + ended.number) from None
    finally:
        source.end()


def _follow(terminal: Terminal, source: Source, state: TopState) -> None:
    figures = source.figures()
    while not state.wants_quit:
        newest = source.figures()
        # A pause keeps the answer, not the knowledge of how old it is.
        answer = figures.answer if state.is_paused and figures.answer else newest.answer
        figures = Figures(answer, newest.age_s, newest.problem)
        width, height = terminal.size
        terminal.draw(draw(state, figures, width, height))
        for key in terminal.read_keys(REDRAW_S):
            before = _request(state, 0)
            state.press(key, row_names(state, answer), rows_that_fit(state, answer, height))
            if _request(state, 0) != before:
                source.hurry()
