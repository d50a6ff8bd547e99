"""A log that keeps nothing: blocks pass once, repeats are known, nothing has a place."""

from __future__ import annotations

from pulsar_ray.managed_ledger.log.memory_log import NOT_STORED, Blocks, MemoryLog
from pulsar_ray.managed_ledger.log.producer_incarnations import New, Repeat
from tests.stored_blocks import block


def test_blocks_pass_before_they_are_answered_and_stand_nowhere() -> None:
    passed: list[Blocks] = []
    log = MemoryLog(3, passed.append)
    blocks = [block(0, rows=2), block(2)]
    append = log.begin_append(blocks, 1000)
    append.run()
    assert append.total_bytes == sum(header.total_length for header, _ in blocks)
    assert passed == []
    assert log.finish_append(append).positions == [NOT_STORED, NOT_STORED]
    assert passed == [blocks]
    assert log.readable_position == NOT_STORED


def test_a_repeat_is_known_and_has_no_position_either() -> None:
    log = MemoryLog(3, lambda _: None)
    log.finish_append(log.begin_append([block(0), block(1)], 1000))
    incarnations = log.incarnations
    assert incarnations.classify(5, 1, 1) == Repeat(NOT_STORED)
    assert isinstance(incarnations.classify(5, 2, 1), New)


def test_a_producer_from_before_a_restart_goes_on_where_it_is() -> None:
    log = MemoryLog(3, lambda _: None)
    assert log.incarnations.knows(5)
    log.finish_append(log.begin_append([block(70)], 1000))
    assert log.incarnations.classify(5, 70, 1) == Repeat(NOT_STORED)
    assert isinstance(log.incarnations.classify(5, 71, 1), New)
