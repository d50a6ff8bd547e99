"""Which of a group's blocks are new, stored, stored in part, or to be asked about again."""

from __future__ import annotations

from pulsar_ray.broker.partition.publishing.duplicate_blocks import sift
from pulsar_ray.broker.partition.publishing.producer_endpoint import (
    Admitted,
    ProducerEndpoint,
    SessionOutcomes,
    WaitingBlocks,
)
from pulsar_ray.format.metadata import ChunkInfo
from pulsar_ray.managed_ledger.log.producer_sequences import ProducerSequences
from pulsar_ray.model.traffic import IncomingTraffic
from pulsar_ray.session.packet_encoders import PacketEncoder
from pulsar_ray.session.requests import Receipt
from pulsar_ray.session.session_table import Session
from tests.stored_blocks import block

SESSION = Session(1, "client", 0)
OUTCOMES = SessionOutcomes(SESSION, PacketEncoder(Receipt))


def admitted(
    first_id: int, rows: int = 1, name: str = "p", seq: int = 0, chunk: ChunkInfo | None = None
) -> Admitted:
    """A block of a producer; its name stands for its incarnation."""
    header, buffers = block(
        seq, incarnation=ord(name), rows=rows, first_id=first_id, producer=name, chunk=chunk
    )
    endpoint = ProducerEndpoint(SESSION, OUTCOMES, 1, name, ord(name), 0, IncomingTraffic(0), 0)
    return endpoint, header, memoryview(b"".join(buffers)), None, 0.0


def sequences(**stored: int) -> ProducerSequences:
    known = ProducerSequences()
    known.switch(on=True)
    for name, last_id in stored.items():
        known.record(admitted(last_id, name=name)[1], 0)
    known.keep()
    return known


def sift_places(
    group: list[Admitted], known: ProducerSequences
) -> tuple[list[int], list[int], list[tuple[int, int]], list[int], list[int]]:
    """As `sift`, with places in the group instead of blocks."""
    place = {id(each): index for index, each in enumerate(group)}

    def places(blocks: list[Admitted]) -> list[int]:
        return [place[id(each)] for each in blocks]

    sifted = sift(group, known)
    overlapping = [(place[id(each)], stored) for each, stored in sifted.overlapping]
    new, duplicates = places(sifted.new), places(sifted.duplicates)
    return new, duplicates, overlapping, places(sifted.behind), places(sifted.put_off)


def test_blocks_above_the_stored_ids_are_new() -> None:
    group = [admitted(5), admitted(6, 3), admitted(0, name="q"), admitted(12)]
    assert sift_places(group, sequences(p=4)) == ([0, 1, 2, 3], [], [], [], [])


def test_stored_blocks_are_duplicates_and_others_overlap() -> None:
    group = [admitted(2, 3), admitted(4), admitted(4, 3), admitted(7), admitted(0, name="q")]
    assert sift_places(group, sequences(p=4)) == ([4], [0, 1], [(2, 4)], [3], [])


def test_a_repeat_within_a_group_waits_for_the_first_one_with_all_behind_it() -> None:
    group = [admitted(5, 2), admitted(6), admitted(9), admitted(5, name="q"), admitted(2)]
    assert sift_places(group, sequences(p=4)) == ([0, 3], [], [], [], [1, 2, 4])


def test_chunks_share_the_id_that_the_last_one_takes() -> None:
    chunks = [admitted(5, chunk=ChunkInfo("p-5", number, 3, 120)) for number in range(3)]
    assert sift_places([*chunks, admitted(6)], sequences(p=4)) == ([0, 1, 2, 3], [], [], [], [])
    assert sift_places([*chunks, admitted(6)], sequences(p=5)) == ([3], [0, 1, 2], [], [], [])
    once_more = admitted(5, chunk=ChunkInfo("p-5", 0, 3, 120))
    assert sift_places([*chunks, once_more], sequences(p=4)) == ([0, 1, 2], [], [], [], [3])


def test_blocks_that_are_put_back_come_first_and_those_taken_out_are_gone() -> None:
    waiting = WaitingBlocks()
    blocks = [admitted(1), admitted(2, name="q"), admitted(3)]
    for each in blocks:
        waiting.append(each)
    assert waiting.last_sequence_id("p") == 3
    assert waiting.last_sequence_id("r") == -1
    group = waiting.take_group()
    waiting.append(admitted(4))
    waiting.put_back(group[1:])
    assert [each[1].first_sequence_id for each in waiting.take_out(ord("p"))] == [3, 4]
    assert waiting.take_group() == [blocks[1]]
    assert waiting.size_bytes == 0
