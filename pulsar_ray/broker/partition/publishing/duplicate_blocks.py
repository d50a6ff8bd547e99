"""Tells by sequence ids which waiting blocks a partition has stored before (ADR 0036).

Pure. Asked while nothing is being written, so all that is known of a producer is durable. A block whose
verdict depends on another one of its group is put off until that one is durable, with all that its producer
has sent behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pulsar_ray.broker.partition.publishing.producer_endpoint import Admitted
from pulsar_ray.managed_ledger.log.producer_sequences import ProducerSequences, takes_its_ids


class Sifted(NamedTuple):
    """The blocks of a group, each in one of these lists, in order."""

    new: list[Admitted]
    duplicates: list[Admitted]
    overlapping: list[tuple[Admitted, int]]
    """Blocks whose front was stored before, with the highest stored sequence id."""
    behind: list[Admitted]
    """Blocks that came behind overlapping ones: they must not be stored before the rest."""
    put_off: list[Admitted]
    """To be asked about again, before what came later."""


def sift(group: Sequence[Admitted], sequences: ProducerSequences) -> Sifted:
    """Sort a group of blocks by what has to become of each."""
    sifted = Sifted([], [], [], [], [])
    highest: dict[str, int] = {}
    put_off: set[int] = set()
    overlapped: set[int] = set()
    for admitted in group:
        producer, header = admitted[0], admitted[1]
        name, incarnation = producer.name, header.incarnation
        if put_off and incarnation in put_off:
            sifted.put_off.append(admitted)
            continue
        if overlapped and incarnation in overlapped:
            sifted.behind.append(admitted)
            continue
        stored = highest.get(name)
        is_durable = stored is None
        if stored is None:
            stored = sequences.durable_id(name)
        if header.first_sequence_id > stored:
            sifted.new.append(admitted)
            highest[name] = header.last_sequence_id if takes_its_ids(header) else stored
        elif not is_durable:
            put_off.add(incarnation)
            sifted.put_off.append(admitted)
        elif header.last_sequence_id <= stored:
            sifted.duplicates.append(admitted)
        else:
            overlapped.add(incarnation)
            sifted.overlapping.append((admitted, stored))
    return sifted
