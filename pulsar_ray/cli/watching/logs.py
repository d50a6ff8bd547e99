"""`pulsar-ray logs`: which log files a topic's actors write, on which node."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from pulsar_ray.cli.console import size, warn, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import progress
from pulsar_ray.config import Settings
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.launch.log_files import OTHER_ACTORS, ActorLog, actors_of_topic, find_logs
from pulsar_ray.launch.rays.ray_session import join_session
from pulsar_ray.model.topic_name import TopicName


@click.command()
@click.argument("topic", required=False)
@click.option("-s", "--subscription", help="Only of this subscription's actors.")
@click.option(
    "--tail",
    "tail_lines",
    type=click.IntRange(min=0, max=10_000),
    default=0,
    metavar="COUNT",
    help="Show so many last lines of each file too.",
)
@pass_target
def logs(target: Target, topic: str | None, subscription: str | None, tail_lines: int) -> None:
    """Show which log files the actors of TOPIC write, on every node, former lives included.

    Without a TOPIC those of the controller and the stores. One file a line: when it was last written to, its
    size, host, path and actor; the one last written to is last. Of a process's two files, .err has what it
    logs. Files last as long as the Ray session.

    \b
    Examples:
      pulsar-ray logs orders
      pulsar-ray logs orders-partition-2 -s audit --tail 20
    """
    if topic is None and subscription is not None:
        raise click.UsageError("give the topic of the subscription")
    names = OTHER_ACTORS if topic is None else actors_of_topic(TopicName.parse(topic).full, subscription)
    settings = Settings.load(data_dir=target.data_dir)
    prefers_embedded = target.data_dir is not None
    with progress("asking the nodes"):
        join_session(target.service_url, Path(settings.data_dir), prefers_embedded=prefers_embedded)
        found, silent = find_logs(names, tail_lines)
    for log in found:
        _print(log)
    for host in silent:
        warn(f"{host} did not answer: its files are not among these")
    if not found and topic is not None:
        of = f" for its subscription {subscription}" if subscription else ""
        raise TopicNotFound(
            f"{TopicName.parse(topic).full} has no log files{of}: no process has served it in this Ray "
            "session; processes start when somebody uses a topic"
        )


def _print(log: ActorLog) -> None:
    written = datetime.fromtimestamp(log.modified_s).astimezone().isoformat(sep=" ", timespec="seconds")
    write_line(f"{written}  {size(log.size_bytes):>9}  {log.host}  {log.path}  {log.actor}")
    for line in log.tail:
        write_line(f"    {line}")
