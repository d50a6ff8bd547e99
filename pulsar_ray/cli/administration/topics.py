"""`pulsar-ray topics`: list, create, grow, delete, look at, and what concerns subscriptions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator

import click
from rich.table import Table

from pulsar_ray.cli.administration import subscriptions
from pulsar_ray.cli.administration.moving import moving, tell_ends
from pulsar_ray.cli.administration.permissions import add_permission_commands
from pulsar_ray.cli.administration.policies import policies_group
from pulsar_ray.cli.administration.stats import stats
from pulsar_ray.cli.console import cell, out, write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching.progress import ShownProgress, Unit, progress
from pulsar_ray.model.policies import TOPIC


@click.group(cls=BrokerCommands)
def topics() -> None:
    """List, create, grow, delete and inspect topics, and administer their subscriptions."""


topics.add_command(stats)
topics.add_command(policies_group(TOPIC, lambda admin: admin.topics.policies))
add_permission_commands(topics, "TOPIC", lambda admin: admin.topics.permissions)
for _one in subscriptions.COMMANDS:
    topics.add_command(_one)


@topics.of(name="list")
@click.option(
    "--namespace",
    default="public/default",
    show_default=True,
    metavar="TENANT/NAMESPACE",
    help="Whose topics.",
)
@click.option("--include-system-topic", is_flag=True, help="Also those that the broker keeps for itself.")
@click.option("--json", "as_json", is_flag=True, help="An object of names and partitions.")
def list_topics(target: Target, namespace: str, include_system_topic: bool, as_json: bool) -> None:
    """Show the topics of a namespace and how many partitions they have.

    One name per line when it is not a terminal that reads them. Line ends and other signs in names that
    cannot be printed are escaped; --json has them exactly.
    """
    found = target.ask(lambda topics: topics.partitions(namespace, include_system_topic=include_system_topic))
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif not out().is_terminal:
        for name in found:
            write_line(name)
    else:
        table = Table("topic", "partitions", title=cell(namespace))
        for name, partitions in found.items():
            table.add_row(cell(name), str(partitions or "none"))
        out().print(table)


@topics.of("topic")
@click.option("--partitions", type=click.IntRange(min=1), help="How many.  [default: not partitioned]")
def create(target: Target, topic: str, partitions: int | None) -> None:
    """Create TOPIC.

    \b
    Example:
      pulsar-ray topics create orders --partitions 4
    """
    with target.asked() as admin:
        if partitions is None:
            admin.topics.create_topic(topic)
        else:
            admin.topics.create_partitioned_topic(topic, partitions)
    write_line(f"created {topic}" + (f" with {partitions} partitions" if partitions else ""))


@topics.of("topic")
@click.option("--partitions", type=click.IntRange(min=1), required=True, help="How many it has then.")
def update(target: Target, topic: str, partitions: int) -> None:
    """Give a partitioned TOPIC more partitions (pulsar-admin's update-partitioned-topic).

    Connected producers and consumers find them within a minute. A key may belong to another partition then.

    \b
    Example:
      pulsar-ray topics update orders --partitions 8
    """
    target.ask(lambda topics: topics.update_partitioned_topic(topic, partitions))
    write_line(f"{topic} has {partitions} partitions")


@topics.of("topic")
def stats_internal(target: Target, topic: str) -> None:
    """Show the ledgers and cursors of TOPIC as JSON."""
    with target.asked() as admin:
        found = admin.topics.stats_internal(topic)
    click.echo(json.dumps(found, indent=2))


@topics.of("topic")
def partitioned_stats(target: Target, topic: str) -> None:
    """Show everything about a partitioned TOPIC as JSON."""
    with target.asked() as admin:
        found = admin.topics.partitioned_stats(topic)
    click.echo(json.dumps(found, indent=2))


@topics.of("topic", "prefix")
def forget_producers(target: Target, topic: str, prefix: str) -> None:
    """Have deduplication forget the producers of TOPIC whose names begin with PREFIX.

    Their messages are stored again if they are sent again. The names are shown, one per line.
    """
    for name in target.ask(lambda topics: topics.forget_producers(topic, prefix)):
        write_line(name)


@topics.of("topic")
@click.option("--force", is_flag=True, help="Also while producers or consumers are connected.")
def delete(target: Target, topic: str, force: bool) -> None:
    """Delete TOPIC with its subscriptions and all its messages."""
    target.ask(lambda topics: topics.delete(topic, force))
    write_line(f"deleted {topic}")


@topics.of()
@click.argument("topics_", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--force", is_flag=True, help="Also while producers or consumers are connected.")
def delete_many(target: Target, topics_: tuple[str, ...], force: bool) -> None:
    """Delete several topics; if some cannot be deleted, the others are."""
    with target.admin() as admin, progress("deleting topics", len(topics_), Unit.ITEMS) as shown:
        admin.topics.delete_many(_counted(topics_, shown), force)
    write_line(f"deleted {len(topics_)} topics")


@topics.of("topic", "node")
def move(target: Target, topic: str, node: str) -> None:
    """Move TOPIC, or one partition, to the store of another NODE, while it is used.

    NODE is a host, or how the id of a store or of a node begins, as `pulsar-ray nodes` shows them. Programs
    that are connected wait for less than a second as a rule, and go on by themselves. A partition that
    cannot be moved stays where it is, and is named; the exit code is 1 then.

    \b
    Example:
      pulsar-ray topics move orders-partition-3 node-b
    """
    with target.admin() as admin, moving(f"moving {topic}") as shown:
        ended, nodes = admin.topics.move(topic, node, shown=shown), admin.brokers.nodes()
    tell_ends(ended, nodes)
    if not ended:
        write_line(f"{topic} is there")


@topics.of("topic")
def terminate(target: Target, topic: str) -> None:
    """End TOPIC for good: it takes no more messages, and is consumed to its end."""
    last = target.ask(lambda topics: topics.terminate_topic(topic))
    write_line(f"terminated {topic} at {last}")


@topics.of("topic")
def partitioned_terminate(target: Target, topic: str) -> None:
    """End all partitions of TOPIC for good."""
    for partition, last in target.ask(lambda topics: topics.terminate_partitioned_topic(topic)).items():
        write_line(f"terminated partition {partition} of {topic} at {last}")


@topics.of("topic")
def truncate(target: Target, topic: str) -> None:
    """Delete all messages of TOPIC, whatever retention keeps, and give their space back."""
    target.ask(lambda topics: topics.truncate(topic))
    write_line(f"truncated {topic}")


@topics.of("topic")
def unload(target: Target, topic: str) -> None:
    """Have the processes that serve TOPIC start anew; clients are connected again by themselves."""
    target.ask(lambda topics: topics.unload(topic))
    write_line(f"unloaded {topic}")


@topics.of("topic")
def compact(target: Target, topic: str) -> None:
    """Begin to compact TOPIC: its compacted view has the latest message of each key.

    \b
    Example:
      pulsar-ray topics compact prices
    """
    target.ask(lambda topics: topics.compact(topic))
    write_line(f"compaction of {topic} has begun: pulsar-ray topics compaction-status {shlex.quote(topic)}")


@topics.of("topic")
def compaction_status(target: Target, topic: str) -> None:
    """Show how the last compaction of TOPIC stands, as JSON."""
    click.echo(json.dumps(target.ask(lambda topics: topics.compaction_status(topic)), indent=2))


@topics.of("topic")
@click.option("--back", is_flag=True, help="Bring back to the disk what is only in the object store.")
def offload(target: Target, topic: str, back: bool) -> None:
    """Leave the closed segments of TOPIC to the object store, which frees the disk.

    They are read from there. The policies offload_threshold, offload_threshold_in_seconds and
    offload_disk_percent do it by themselves.

    \b
    Example:
      pulsar-ray topics offload orders
    """
    target.ask(lambda topics: topics.fetch_back(topic) if back else topics.offload(topic))
    what = "fetching back" if back else "offload"
    write_line(f"{what} of {topic} has begun: pulsar-ray topics offload-status {shlex.quote(topic)}")


@topics.of("topic")
def offload_status(target: Target, topic: str) -> None:
    """Show how the last offload of TOPIC stands, as JSON."""
    click.echo(json.dumps(target.ask(lambda topics: topics.offload_status(topic)), indent=2))


def _counted(topics_: Iterable[str], shown: ShownProgress) -> Iterator[str]:
    """Give one name after the other, and count each once its turn is over."""
    for topic in topics_:
        yield topic
        shown.advance()
