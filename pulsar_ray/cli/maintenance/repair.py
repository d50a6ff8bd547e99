"""`pulsar-ray repair`: mends what is damaged in a data directory that nobody uses."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pulsar_ray.cli.console import write_line
from pulsar_ray.cli.maintenance.verify import DAMAGED, described, report
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotOurDataDirectory
from pulsar_ray.maintenance.partition_repair import Repair
from pulsar_ray.maintenance.repair import RepairReport, repair_directory
from pulsar_ray.maintenance.verify import stored_bytes


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
        with progress("checking", 2 * stored_bytes(path), Unit.BYTES) as shown:

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
