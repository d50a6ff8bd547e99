"""Entry point of the pulsar-ray command."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from pulsar_ray import __version__
from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.console import INTERRUPTED, guard_remarks
from pulsar_ray.cli.target import Target
from pulsar_ray.errors import PulsarException

EPILOG = """\b
Examples:
  pulsar-ray standalone                          a broker of its own, in the foreground
  pulsar-ray topics create orders --partitions 4
  pulsar-ray consume orders -s audit --no-follow create a subscription, show what it holds
  cat orders.txt | pulsar-ray produce orders --key-separator :
  pulsar-ray stats orders

Without --service-url the commands use the broker of the Ray cluster that runs on this machine. If none runs
they start an embedded broker in the background, which ends a minute after the last program. What is stored
stays in --data-dir (PULSAR_RAY_DATA_DIR, ~/.pulsar-ray).

Exit codes: 0 done, 1 failed (one line says why and what to do), 2 wrong usage, 3 the broker runs and not all
of its stores work (status, wait) or something does not work (health, doctor), 4 something is damaged
(verify, repair, backup), 130 stopped by Ctrl-C.
"""


_COMMANDS = {
    "standalone": ("broker", "Run an embedded broker in the foreground."),
    "start": ("broker", "Start the broker on the Ray cluster that runs here."),
    "install-service": ("install_service", "Have systemd start Ray and the broker at boot."),
    "init-store": ("broker", "Make a directory of this node a store of the broker."),
    "status": ("broker", "Say whether a broker runs, and where it stores."),
    "wait": ("watching.wait", "Wait until the broker and all of its stores serve."),
    "stop": ("broker", "End the broker; what it stores stays."),
    "verify": ("maintenance", "Check every checksum of a data directory, running or not."),
    "repair": ("maintenance", "Mend a damaged data directory of a stopped broker."),
    "backup": ("maintenance", "Copy a data directory, while the broker runs or not."),
    "adopt": ("maintenance", "Let a backup be served from now on."),
    "salvage": ("salvage", "Find what an ended store never shipped, and publish it again."),
    "produce": ("messages.produce", "Send lines to a topic."),
    "consume": ("messages.consume", "Show the messages of a subscription."),
    "perf": ("messages.perf", "Measure rates and latencies."),
    "topics": (
        "administration.topics",
        "List, create, grow, delete and inspect topics, and administer their subscriptions.",
    ),
    "namespaces": (
        "administration.namespaces",
        "Create, list and delete namespaces, and set policies for their topics.",
    ),
    "tenants": ("administration.tenants", "Create, list and delete tenants, which namespaces belong to."),
    "tokens": ("administration.tokens", "Make keys and tokens for HTTP, and look at tokens."),
    "schemas": ("administration.schemas", "Show, test, upload and delete the schemas of topics."),
    "brokers": ("administration.brokers", "List the nodes that store, and check that they work."),
    "nodes": ("administration.brokers", "List every node that was ever in, with its store and disk."),
    "stores": ("administration.brokers", "Give stores up whose disks are lost."),
    "remote": (
        "administration.remote",
        "Say what stores have shipped into an object store, check it, and tell its cost.",
    ),
    "health": ("watching.health", "Say what does not work, and why, for people and probes."),
    "doctor": ("watching.doctor", "Look what is wrong with this machine, and what to do about it."),
    "stats": ("administration.stats", "Show counters of a topic, or of the broker."),
    "logs": ("watching.logs", "Show which log files a topic's actors write, on which node."),
    "metrics": (
        "watching.metrics",
        "Install the dashboard and the alerts, and show where metrics are.",
    ),
    "ui": ("watching.ui", "Open the page of topics, messages and nodes in a browser."),
    "top": ("watching.top.command", "Watch topics, subscriptions and consumers in the terminal."),
    "spark": ("spark", "Open a Python shell on Spark, or run a program there."),
    "demo": ("demo", "Send real text through everything, to Spark, and check every line."),
}
"""Module and one line of help of each command, in the order of `--help`."""


_HELP: type[click.ClickException] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""The help of a group that was given no command.

Before 8.2 click shows it without an error.
"""


class Commands(click.Group):
    """Import a command when it runs, since most commands load Ray.

    Errors become one line and an exit code.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; None if there is none of that name."""
        if cmd_name not in _COMMANDS:
            return None
        # Ray prints its cluster's warnings to standard output, where our results go. It reads this at import.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        module = importlib.import_module(f"pulsar_ray.cli.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in `--help`, with nothing imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PulsarException as error:
            raise click.ClickException(one_line(str(error))) from None
        except click.NoSuchOption as error:
            if any(error.option_name in option.opts for option in self.params):
                raise click.UsageError(
                    f"{error.option_name} goes before the command: "
                    f"pulsar-ray {error.option_name} ... {ctx.invoked_subcommand} ...",
                    error.ctx,
                ) from None
            raise
        except click.ClickException as error:
            if isinstance(error, _HELP):
                raise
            # It names what users chose: topics, files, keys. Declared final, it is read when it is shown.
            vars(error)["message"] = one_line(error.message)
            raise
        except ValueError as error:
            if type(error) is not ValueError:  # a defect of ours, or input that is no text
                raise
            # The client raises a plain ValueError for wrong arguments.
            raise click.UsageError(one_line(str(error))) from None
        except OSError as error:
            # Of a full or broken disk, or of somebody else's file. Click ends by itself on a broken pipe.
            if error.errno is None or error.errno == errno.EPIPE:
                raise
            raise click.ClickException(one_line(str(error))) from None
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


def _check_url(_: click.Context, __: click.Parameter, url: str) -> str:
    if url not in ("auto", "local") and ("://" in url or ":" not in url):
        raise click.BadParameter('give "auto", "local" or the host:port of a Ray cluster')
    return url


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EPILOG)
@click.version_option(__version__, prog_name="pulsar-ray")
@click.option(
    "--service-url",
    default="auto",
    show_default=True,
    callback=_check_url,
    help='"auto", "local" (always an embedded broker) or the host:port of a Ray cluster.',
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Where a broker that is started keeps everything.  [default: ~/.pulsar-ray]",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "socket", "tcp", "ray"]),
    default="auto",
    show_default=True,
    help="How packets travel; all but auto force one way.",
)
@click.pass_context
def main(ctx: click.Context, service_url: str, data_dir: str | None, transport: str) -> None:
    """Run and use a durable broker inside a Ray cluster."""
    guard_remarks()
    if sys.stdin is None:
        # A command that reads the closed input gets an error so, and no socket takes its number.
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY))
    if ctx.obj is None:
        ctx.obj = Target(service_url, data_dir, transport)
