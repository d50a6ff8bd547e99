"""`pulsar-ray backup` and `pulsar-ray adopt`: copies of data directories."""

from __future__ import annotations

from pathlib import Path

import click

from pulsar_ray.cli.console import size, write_line
from pulsar_ray.cli.maintenance.verify import DAMAGED, report
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.clock import SystemClock
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.maintenance.adoption import adopt_copy
from pulsar_ray.maintenance.backup import back_up
from pulsar_ray.maintenance.verify import stored_bytes, verify_directory


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
        with progress("copying", stored_bytes(source), Unit.BYTES) as shown:
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
        identity, is_copy = adopt_copy(Path(directory))
    except InvalidConfiguration as error:
        raise click.UsageError(error.text) from None
    if is_copy:
        write_line(f"{directory} is store {identity.store_id} from now on")
    else:
        write_line(f"{directory} is store {identity.store_id}, and no backup: there is nothing to do")
