"""`pulsar-ray salvage`: what an ended store has on its disk and never shipped."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.errors import NotAllowedError, NotOurDataDirectory
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.store_files import noted_url
from pulsar_ray.maintenance.salvage import Unshipped, find_unshipped
from pulsar_ray.managed_ledger.log.partition_directories import partition_numbers


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--url", help="The object store.  [default: the one that the store shipped to]")
@click.option("--publish", is_flag=True, help="Publish it again to the same topics.")
@click.option("--yes", is_flag=True, help="Do not ask before that.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_target
def salvage(
    target: Target, directory: Path, url: str | None, publish: bool, yes: bool, as_json: bool
) -> None:
    """Show what an ended store alone has on its disk, and publish it again.

    DIRECTORY is the data directory of a store whose journal was ended because its node was away, or a copy of
    it. Nothing in it is changed. Listed are messages that stand in its files and not in its journal: with
    `async` the end of what was confirmed, with `sync` only what nobody was told is stored, and all of
    partitions that were never shipped. Producers may have sent some of it again to the successors.

    With --publish each goes to its topic once more, with key, properties, times and schema, under a new id.
    The former one is in the property SALVAGED_MESSAGE_ID. Done twice, it is published twice.

    \b
    Example:
      pulsar-ray salvage /data/pulsar-ray.ended --publish
    """
    place = url or noted_url(directory)
    if not place:
        raise click.UsageError(f"{directory} does not tell where its store shipped to: give --url")
    try:
        with progress("reading", len(partition_numbers(directory / "p")), Unit.ITEMS) as shown:
            found = find_unshipped(directory, open_object_store(place), shown.advance)
    except NotOurDataDirectory as error:
        raise click.UsageError(error.text) from None
    if as_json:
        click.echo(json.dumps([_described(each) for each in found], indent=1))
    else:
        _report(found)
    if publish:
        _publish(target, found, is_agreed=yes)


def _described(found: Unshipped) -> dict[str, object]:
    return {name: value for name, value in found._asdict().items() if name != "parts"}


def _report(found: list[Unshipped]) -> None:
    if not found:
        say("all that is here was shipped")
        return
    for each in found:
        if each.messages:
            ids = f"{each.first_id} to {each.last_id}"
            times = f"{_time(each.first_ms)} to {_time(each.last_ms)}"
            write_line(f"{each.topic}: {each.messages:,} messages, {ids}, published {times}")
        if each.damage:
            say(f"{each.topic}: not all of it can be read: {each.damage}")


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000).astimezone():%Y-%m-%d %H:%M:%S}"


def _publish(target: Target, found: list[Unshipped], *, is_agreed: bool) -> None:
    from pulsar_ray.admin.salvaging import may_be_published, publish_again  # noqa: PLC0415

    chosen = [each for each in found if may_be_published(each) and each.messages]
    total = sum(each.messages for each in chosen)
    if not total:
        say("there is nothing to publish")
        return
    if not is_agreed and not click.confirm(f"Publish {total:,} messages again?", err=True):
        raise NotAllowedError("nothing was published")
    with target.client() as client, progress("publishing", total, Unit.ITEMS) as shown:
        went = publish_again(client, chosen, shown.advance)
    for topic, count in went.items():
        say(f"{count:,} messages went to {topic}")
