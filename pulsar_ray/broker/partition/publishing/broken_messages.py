"""Finds the chunks whose message cannot become whole.

An earlier chunk of it was refused (ADR 0088). Pure. Asked when a write begins, so the log tells what
precedes a block: nothing is being written then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.broker.partition.publishing.producer_endpoint import Admitted
from pulsar_ray.format.block import CHUNK, BlockHeader
from pulsar_ray.managed_ledger.log.producer_incarnations import ProducerIncarnations


class Parted(NamedTuple):
    """The blocks of a group, each in one of these lists, in order."""

    to_store: list[Admitted]
    broken: list[Admitted]


def part_broken(group: Sequence[Admitted], incarnations: ProducerIncarnations) -> Parted:
    """Take out the chunks that do not stand behind the one before.

    A message's chunks are consecutive entries of its producer, so it is enough to look at the entry before:
    that one was stored only behind the one before it.
    """
    parted = Parted([], [])
    stored_up_to: dict[int, int] = {}
    for admitted in group:
        header = admitted[1]
        incarnation, before = header.incarnation, header.entry_seq - 1
        if _goes_on(header) and not (
            stored_up_to[incarnation] == before
            if incarnation in stored_up_to
            else incarnations.precedes(incarnation, before)
        ):
            parted.broken.append(admitted)
            continue
        stored_up_to[incarnation] = before + header.entries
        parted.to_store.append(admitted)
    return parted


def _goes_on(header: BlockHeader) -> bool:
    """Whether a block is a chunk behind the first one of its message."""
    if not header.flags & CHUNK:
        return False
    chunk = header.metadata().chunk
    return chunk is not None and chunk.chunk_id > 0
