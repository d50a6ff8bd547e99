"""`pulsar-ray verify`: whether what a data directory holds is whole."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pulsar_ray.cli.console import say, size, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.config import Settings
from pulsar_ray.errors import NotOurDataDirectory
from pulsar_ray.maintenance.damage import Findings
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
        with progress("checking", stored_bytes(path), Unit.BYTES) as shown:
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
