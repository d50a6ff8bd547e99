"""The age of the oldest message of each backlog, looked up where a position has moved."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pulsar_ray.broker.partition.backlog.backlog_ages import BacklogAges
from pulsar_ray.managed_ledger.log.backlog_search import BacklogFront, BacklogSearch
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.model.message_id import EARLIEST, Position
from tests.stored_blocks import IDENTITY, append, open_log, settings

LEDGER = IDENTITY.number << 31
MESSAGES = 8


def log_of_a_message_each_second(path: Path) -> ManagedLedger:
    log = open_log(path, config=settings(managed_ledger_max_entries_per_ledger=100))
    for seq in range(MESSAGES):
        append(log, seq, now_ms=seq * 1000, publish_ms=seq * 1000)
    return log


def entry(number: int) -> Position:
    return Position(LEDGER, number)


def test_each_backlog_is_as_old_as_the_first_message_above_its_position(tmp_path: Path) -> None:
    async def run() -> None:
        log = log_of_a_message_each_second(tmp_path)
        ages = BacklogAges(log, asyncio.get_running_loop())
        await ages.learn({1: EARLIEST, 2: entry(2), 3: log.last_position}, most=10)
        assert [ages.oldest_ms(number) for number in (1, 2, 3, 4)] == [0, 3000, None, None]
        await ages.learn({2: entry(5)}, most=10)
        assert [ages.oldest_ms(number) for number in (1, 2)] == [None, 6000]
        log.close()

    asyncio.run(run())


def test_a_position_that_stands_still_is_looked_up_once_and_all_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []

    def counted(search: BacklogSearch) -> BacklogFront:
        searches.append(search)
        return BacklogFront(EARLIEST, 7, 0)

    async def run() -> None:
        log = log_of_a_message_each_second(tmp_path)
        monkeypatch.setattr(BacklogSearch, "run", counted)
        ages = BacklogAges(log, asyncio.get_running_loop())
        marks = {number: entry(number) for number in range(5)}
        for known in (2, 4, 5, 5):
            await ages.learn(marks, most=2)
            assert sum(ages.oldest_ms(number) is not None for number in marks) == known
        assert len(searches) == 5
        log.close()

    asyncio.run(run())
