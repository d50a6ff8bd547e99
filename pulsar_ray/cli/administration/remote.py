"""`pulsar-ray remote`: what stores have shipped into an object store."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from rich.table import Table

from pulsar_ray.cli.console import cell, out, say, size, write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.parameters import FiniteRange
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import OFF, Settings
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.store_files import noted_url
from pulsar_ray.maintenance.remote_bill import Bill, Prices, bill_of
from pulsar_ray.maintenance.remote_verify import RemoteFindings, verify_remote

FAULTY = 1
"""Exit code if something is missing or damaged."""


@click.group(cls=BrokerCommands)
def remote() -> None:
    """Say what stores have shipped into an object store, check it, and tell its cost."""


@remote.of(name="status")
@click.option("--json", "as_json", is_flag=True, help="A list of stores.")
def remote_status(target: Target, as_json: bool) -> None:
    """Show how much of each store waits to be shipped, for how long, and why.

    Counts are since the store's process started. The exit code is 1 if a store does not ship.
    """
    with target.asked() as admin:
        found = admin.stores.remote()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=2))
    elif not found:
        say("nothing is shipped: start with --remote URL")
    else:
        table = Table("host", "store", "to", "partitions", "waiting", "lag", "shipped", "PUTs", "cache")
        for each in found:
            sizes = (size(each.waiting_bytes), f"{each.lag_seconds:.1f} s", size(each.shipped_bytes))
            names = (cell(each.host), each.store_id[:8], cell(each.url), str(each.partitions))
            read = each.cache_hits + each.cache_misses
            cache = f"{size(each.cache_bytes)}, {each.cache_hits / read:.0%} found" if read else ""
            table.add_row(*names, *sizes, str(each.puts), cache)
        out().print(table)
    for each in found:
        for text in filter(None, (each.problem, each.remark)):
            say(f"{each.host}: {text}")
    if any(each.problem or not each.is_ready for each in found):
        raise click.exceptions.Exit(1)


def address(target: Target, url: str | None) -> str:
    """Return the object store that was given, is set, or was shipped to from here."""
    settings = Settings.load(data_dir=target.data_dir)
    found = url or (settings.remote_url if settings.remote_url != OFF else "")
    found = found or noted_url(Path(settings.data_dir).expanduser())
    if not found:
        raise click.UsageError("give the URL of the object store: nothing here tells it")
    return found


@remote.command(name="verify")
@click.argument("url", required=False)
@click.option("--deep", is_flag=True, help="Restore each partition for a moment, and check all its blocks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_target
def remote_verify(target: Target, url: str | None, deep: bool, as_json: bool) -> None:
    """Read all that stores have shipped, and name what is missing or damaged.

    Needs no broker and no Ray, only URL and the right to read there: by default the object store that is set,
    or that the store in --data-dir ships to. A cluster may go on shipping meanwhile. Checked are the catalog
    of owners, each store's newest index and its journal behind it without a gap, all pieces of the partitions
    that it owns, with their checksums, and that what manifests list is there. With --deep each partition is
    restored into a temporary directory (TMPDIR), one after the other.

    Exits with 0 if all can be restored, and with 1 if not.

    \b
    Example:
      pulsar-ray remote verify s3://bucket/prefix
    """
    place = address(target, url)
    with progress("reading", None, Unit.BYTES) as shown:
        found = verify_remote(open_object_store(place), is_deep=deep, progress=shown.advance)
    if as_json:
        click.echo(json.dumps(_described(place, found), indent=1))
    else:
        _report(place, found)
    if not found.is_clean:
        raise click.exceptions.Exit(FAULTY)


def _described(place: str, found: RemoteFindings) -> dict[str, object]:
    return {"url": place, "clean": found.is_clean, **dataclasses.asdict(found)} | {
        "faults": [fault._asdict() for fault in found.faults]
    }


def _report(place: str, found: RemoteFindings) -> None:
    for remark in found.remarks:
        say(remark)
    for fault in found.faults:
        write_line(str(fault))
    if found.left_out:
        write_line(f"... and {found.left_out:,} more")
    outcome = "all can be restored"
    if not found.is_clean:
        outcome = f"faults: {len(found.faults) + found.left_out:,}"
    write_line(
        f"{place}: {outcome} (stores: {found.stores:,}, of which ended: {found.ended:,}, partitions: "
        f"{found.partitions:,}, objects read: {found.objects:,}, {size(found.bytes)})"
    )


@remote.command(name="bill")
@click.argument("url", required=False)
@click.option(
    "--put-price",
    type=FiniteRange(min=0),
    default=Prices().puts,
    show_default=True,
    help="Dollars for 1,000 PUTs.",
)
@click.option(
    "--storage-price",
    type=FiniteRange(min=0),
    default=Prices().storage,
    show_default=True,
    help="Dollars for a gigabyte and month.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_target
def remote_bill(
    target: Target, url: str | None, put_price: float, storage_price: float, as_json: bool
) -> None:
    """Count the objects that stores have shipped, and say what a day of it costs.

    Needs no broker, only the right to list URL: by default the object store that is set, or that the store in
    --data-dir ships to. PUTs of a day are those of now, carried on: journal objects since the newest index,
    and pieces of the last day. Reads, lists and traffic are not counted.

    \b
    Example:
      pulsar-ray remote bill s3://bucket/prefix --put-price 0.0054
    """
    place = address(target, url)
    now_s = SystemClock().now_ms() / 1000
    with progress("listing", None, Unit.NOTHING):
        bill = bill_of(open_object_store(place).measured(), Prices(put_price, storage_price), now_s)
    if as_json:
        click.echo(json.dumps(_described_bill(place, bill), indent=1))
        return
    table = Table("kind", "objects", "bytes")
    for kind, share in sorted(bill.kinds.items()):
        table.add_row(cell(kind), f"{share.objects:,}", size(share.bytes))
    table.add_row("all", f"{bill.objects:,}", size(bill.bytes))
    out().print(table)
    write_line(
        f"a day: {bill.puts_per_day:,.0f} PUTs ${bill.puts_cost_per_day:,.2f}, storage "
        f"${bill.storage_cost_per_day:,.2f}, at ${put_price:g} per 1,000 PUTs and ${storage_price:g} per GB "
        "and month"
    )


def _described_bill(place: str, bill: Bill) -> dict[str, object]:
    return {
        "url": place,
        "kinds": {kind: dataclasses.asdict(share) for kind, share in sorted(bill.kinds.items())},
        "objects": bill.objects,
        "bytes": bill.bytes,
        "puts_per_day": bill.puts_per_day,
        "puts_cost_per_day": bill.puts_cost_per_day,
        "storage_cost_per_day": bill.storage_cost_per_day,
        "prices": bill.prices._asdict(),
    }
