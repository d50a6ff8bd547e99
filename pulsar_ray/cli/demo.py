"""`pulsar-ray demo`: real text through everything, to Spark."""

from __future__ import annotations

from pathlib import Path

import click

from pulsar_ray.cli.console import out, write_line
from pulsar_ray.cli.nodes_may_go import show_nodes_may_go
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
@click.option(
    "--nodes-may-go",
    is_flag=True,
    help="Instead: kill a broker, delete its disk, and bring it back from an object store.",
)
@pass_target
def demo(
    target: Target,
    inputs: tuple[Path, ...],
    more: tuple[Path, ...],
    data_dir: Path | None,
    limit: int | None,
    nodes_may_go: bool,
) -> None:
    """Send real text through the broker to consumers and to Spark, and check every line.

    All lines of the Python standard library's source files (or of --input FILE...), keyed by module, go into
    a new topic of 4 partitions. Consumers in Ray actors count them and check their order per key, while one
    partition's process is killed half way. Then Spark reads the whole topic through RayDP, streams
    it once more, and writes its counts back to a topic. All counts are compared with the files; any
    difference is exit code 1. Everything that was started is ended.

    With --nodes-may-go, which needs no Spark: a broker of its own ships into a directory that stands for an
    object store, messages are published and some acknowledged, all processes are killed with -9 and the data
    directory is deleted; then a new broker is founded from there, and all that is left is read and compared.

    \b
    Examples:
      pulsar-ray demo
      pulsar-ray demo --input access.log error.log
      pulsar-ray demo --nodes-may-go
    """
    if nodes_may_go:
        show_nodes_may_go(write_line)
        return
    job = spark_module("demo")
    paths = [*inputs, *more]
    if more and not inputs:
        raise click.UsageError("give files with --input")
    files = job.own_files(paths) if paths else job.standard_library(limit)
    given = data_dir or (Path(target.data_dir) if target.data_dir else None)
    job.Demo(files, out(), given, waiting=progress).run()
