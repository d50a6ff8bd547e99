"""Shows partitions that move between nodes, for commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.watching.progress import Unit, progress

if TYPE_CHECKING:
    from pulsar_ray.admin.brokers import BrokerNode
    from pulsar_ray.admin.moving import PartitionMove


@contextmanager
def moving(doing: str) -> Iterator[Callable[[Sequence[PartitionMove]], None]]:
    """Show how many bytes of moves are copied, until the end of the block."""
    with progress(doing, 1, Unit.BYTES) as line:

        def show(moves: Sequence[PartitionMove]) -> None:
            line.has_total(sum(move.total_bytes for move in moves) or 1)
            line.reached(sum(move.total_bytes - (0 if move.is_moved else move.rest_bytes) for move in moves))

        yield show


def tell_ends(moves: Sequence[PartitionMove], nodes: Sequence[BrokerNode]) -> None:
    """Say how moves ended; the exit code is 1 if one of the partitions stayed."""
    hosts = {node.store_id: node.host for node in nodes}
    for move in sorted(moves, key=lambda move: move.partition):
        target = hosts.get(move.target, move.target)
        if move.is_moved:
            write_line(f"{move.partition} is on {target}")
        else:
            say(f"{move.partition} stays on {hosts.get(move.source, move.source)}: {move.reason}")
    if not all(move.is_moved for move in moves):
        raise click.exceptions.Exit(1)
