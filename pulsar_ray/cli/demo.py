"""`pulsar-ray demo`: real text through everything, to Spark."""

from __future__ import annotations

from pathlib import Path

import click

from pulsar_ray.cli.console import out
from pulsar_ray.cli.spark_package import spark_module
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import progress


@click.command()
@click.option(
    "--input",
    "inputs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text of yours instead, keyed by file; may be repeated.",
)
@click.argument("more", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data there.  [default: a temporary directory]",
)
@click.option("--limit", type=click.IntRange(min=1), hidden=True, help="So many files only.")
@pass_target
def demo(
    target: Target, inputs: tuple[Path, ...], more: tuple[Path, ...], data_dir: Path | None, limit: int | None
) -> None:
    """Send real text through the broker to consumers and to Spark, and check every line.

    All lines of the Python standard library's source files (or of --input FILE...), keyed by module, go into
    a new topic of 4 partitions. Consumers in Ray actors count them and check their order per key, while one
    partition's process is killed half way. Then Spark reads the whole topic through RayDP, streams
    it once more, and writes its counts back to a topic. All counts are compared with the files; any
    difference is exit code 1. Everything that was started is ended.

    \b
    Examples:
      pulsar-ray demo
      pulsar-ray demo --input access.log error.log
    """
    job = spark_module("demo")
    paths = [*inputs, *more]
    if more and not inputs:
        raise click.UsageError("give files with --input")
    files = job.own_files(paths) if paths else job.standard_library(limit)
    given = data_dir or (Path(target.data_dir) if target.data_dir else None)
    job.Demo(files, out(), given, waiting=progress).run()
