"""`pulsar-ray verify`, `repair`, `backup` and `adopt`: what a data directory holds."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pulsar_ray.cli.console import say, size, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, NotOurDataDirectory
from pulsar_ray.ledger.disk import persistent
from pulsar_ray.maintenance.backup import adopt_copy, back_up
from pulsar_ray.maintenance.damage import Findings
from pulsar_ray.maintenance.partition_repair import Repair
from pulsar_ray.maintenance.repair import RepairReport, repair_directory
from pulsar_ray.maintenance.verify import stored_bytes, verify_directory

DAMAGED = 4
"""Exit code if something is damaged."""


@click.command()
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_target
def verify(target: Target, directory: str | None, as_json: bool) -> None:
    """Check every checksum of a data directory, while the broker runs or not.

    Reads ledgers, manifests, cursors, indexes and the catalog of this node's part, changes nothing, and says
    by topic and position what is lost. DIRECTORY is by default --data-dir. A write that was under way when
    the broker died is no damage.

    Exits with 0 if all is whole, and with 4 if something is damaged.

    \b
    Example:
      pulsar-ray verify /data/pulsar-ray
    """
    path = Path(directory or Settings.load(data_dir=target.data_dir).data_dir)
    try:
        with persistent(path), progress("checking", stored_bytes(path), Unit.BYTES) as shown:
            findings = verify_directory(path, shown.advance)
    except NotOurDataDirectory as error:
        raise click.UsageError(error.text) from None
    if as_json:
        click.echo(json.dumps(described(path, findings), indent=1))
    else:
        report(path, findings)
    if not findings.is_clean:
        raise click.exceptions.Exit(DAMAGED)


def described(path: Path, findings: Findings) -> dict[str, object]:
    """The findings as plain values."""
    return {
        "directory": str(path),
        "clean": findings.is_clean,
        "damages": [damage.describe() for damage in findings.damages],
        "damages_left_out": findings.left_out,
        "remarks": findings.remarks,
        "checked": findings.totals._asdict(),
    }


def report(path: Path, findings: Findings) -> None:
    """Print the damages, then what was checked; remarks go to standard error."""
    for remark in findings.remarks:
        say(remark)
    for damage in findings.damages:
        write_line(str(damage))
    if findings.left_out:
        write_line(f"... and {findings.left_out:,} more")
    totals = findings.totals
    outcome = "all is whole"
    if not findings.is_clean:
        count = len(findings.damages) + findings.left_out
        outcome = f"damaged places: {count:,}, entries lost: {findings.lost_entries:,}"
    write_line(
        f"{path}: {outcome} (partitions: {totals.partitions:,}, ledgers: {totals.ledgers:,}, entries: "
        f"{totals.entries:,}, {size(totals.bytes)}, cursors: {totals.cursors:,})"
    )


@click.command()
@click.argument("into", type=click.Path(file_okay=False))
@click.option("--verify/--no-verify", "verifies", default=True, help="Check the whole copy behind it.")
@pass_target
def backup(target: Target, into: str, verifies: bool) -> None:
    """Copy this node's data directory (--data-dir), while the broker runs or not.

    INTO is a new or an empty directory. Every message that was confirmed before is in the copy, and every
    subscription where it was, or a little behind. Nothing serves the copy until somebody runs `pulsar-ray
    adopt`. Each node has a directory of its own: run it on each.

    Exits with 4 if the copy has damage, which the directory then has as well.

    \b
    Example:
      pulsar-ray --data-dir /data/pulsar-ray backup /backups/monday
    """
    source = Path(Settings.load(data_dir=target.data_dir).data_dir)
    copy = Path(into)
    try:
        with persistent(copy), progress("copying", stored_bytes(source), Unit.BYTES) as shown:
            done = back_up(source, copy, SystemClock().now_ms(), shown.advance)
    except InvalidConfiguration as error:
        raise click.UsageError(error.text) from None
    write_line(f"{source}: copied {done.partitions:,} partitions, {size(done.bytes)} to {copy}")
    if verifies:
        with progress("checking the copy", stored_bytes(copy), Unit.BYTES) as shown:
            findings = verify_directory(copy, shown.advance)
        report(copy, findings)
        if not findings.is_clean:
            raise click.exceptions.Exit(DAMAGED)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
def adopt(directory: str) -> None:
    """Let a backup take the place of the directory that it is a copy of.

    It goes on as that store of that cluster. Never serve both: the same message ids would mean different
    messages.

    \b
    Example:
      pulsar-ray adopt /backups/monday && pulsar-ray --data-dir /backups/monday start
    """
    try:
        with persistent(Path(directory)):
            identity, is_copy = adopt_copy(Path(directory))
    except InvalidConfiguration as error:
        raise click.UsageError(error.text) from None
    if is_copy:
        write_line(f"{directory} is store {identity.store_id} from now on")
    else:
        write_line(f"{directory} is store {identity.store_id}, and no backup: there is nothing to do")


@click.command()
@click.argument("directory", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--cut-damaged", is_flag=True, help="Cut lost entries out too: subscriptions pass over them silently."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@pass_target
def repair(target: Target, directory: str | None, dry_run: bool, cut_damaged: bool, as_json: bool) -> None:
    """Mend a damaged data directory; its broker has to be stopped.

    Makes anew what can be made of the rest: manifests from ledgers, cursors from the intact records of their
    logs, store.json and the catalog from each other. Lost entries stay listed, unless --cut-damaged is
    given. The former files are kept in DIRECTORY/repaired. Says what was done, then what is damaged still.
    DIRECTORY is by default --data-dir.

    Exits with 0 if all is whole then, and with 4 if something is damaged still.

    \b
    Example:
      pulsar-ray repair /data/pulsar-ray --dry-run
    """
    path = Path(directory or Settings.load(data_dir=target.data_dir).data_dir)
    try:
        with persistent(path), progress("checking", 2 * stored_bytes(path), Unit.BYTES) as shown:

            def tell(repair: Repair) -> None:
                if not as_json:
                    shown.between(lambda: write_line(f"{'would: ' if dry_run else ''}{repair}"))

            done = repair_directory(
                path,
                SystemClock().now_ms(),
                is_dry_run=dry_run,
                cuts_damaged=cut_damaged,
                tell=tell,
                progress=shown.advance,
            )
    except NotOurDataDirectory as error:
        raise click.UsageError(error.text) from None
    if as_json:
        click.echo(json.dumps(_described(path, done, dry_run=dry_run), indent=1))
    else:
        if done.kept is not None:
            write_line(f"the former files are in {done.kept}")
        report(path, done.left)
    if not done.left.is_clean:
        raise click.exceptions.Exit(DAMAGED)


def _described(path: Path, done: RepairReport, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "repairs": [repair.describe() for repair in done.repairs],
        "kept": str(done.kept) if done.kept is not None else None,
        **described(path, done.left),
    }
