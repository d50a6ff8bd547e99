"""A compaction that is under way leaves the machine to a partition that is busy."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pulsar_ray.broker.partition.compaction_job import CompactionJob
from pulsar_ray.errors import ServiceUnitNotReady
from pulsar_ray.managed_ledger.compaction.compacted_form import newest_form, numbers_of_forms
from pulsar_ray.managed_ledger.compaction.compaction_order import CompactionOrder, JobState
from tests.unit.managed_ledger.compaction.history import History, Row

DEADLINE_S = 60.0


class Sleeper:
    """Stays in its first pause until it is let go."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self.is_in_a_pause = threading.Event()
        self.let_go = threading.Event()

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.is_in_a_pause.set()
        assert self.let_go.wait(DEADLINE_S)


@pytest.fixture
def order(tmp_path: Path) -> CompactionOrder:
    history = History(tmp_path)
    for number in range(20):
        history.batch([Row("a", b"%d" % number), Row("b", b"%d" % number)])
    return history.order()


def ended(job: CompactionJob, key: tuple[int, int], *, is_busy: bool) -> JobState:
    deadline = time.monotonic() + DEADLINE_S
    while (state := job.look(key, is_busy)).outcome is None and state.error is None:
        assert time.monotonic() < deadline
    return state


def test_it_pauses_while_its_partition_is_busy_and_gets_done(order: CompactionOrder) -> None:
    sleeper = Sleeper()
    sleeper.let_go.set()
    job = CompactionJob(sleeper.sleep)
    job.begin(order, True)
    outcome = ended(job, order.key, is_busy=True).outcome
    assert outcome is not None
    assert outcome.kept == 2
    assert sleeper.pauses
    assert min(sleeper.pauses) >= 0


def test_it_makes_no_pause_once_its_partition_is_idle(order: CompactionOrder) -> None:
    sleeper = Sleeper()
    job = CompactionJob(sleeper.sleep)
    job.begin(order, True)
    assert sleeper.is_in_a_pause.wait(DEADLINE_S)
    job.look(order.key, False)
    sleeper.let_go.set()
    assert ended(job, order.key, is_busy=False).outcome is not None
    assert len(sleeper.pauses) == 1


def test_one_that_nobody_waits_for_ends_in_its_pause(order: CompactionOrder) -> None:
    sleeper = Sleeper()
    job = CompactionJob(sleeper.sleep)
    job.begin(order, True)
    assert sleeper.is_in_a_pause.wait(DEADLINE_S)
    job.end()
    sleeper.let_go.set()
    state = job.look(order.key, True)
    assert state.outcome is None
    with pytest.raises(ServiceUnitNotReady, match="has ended"):
        job.look((order.epoch, order.number + 1), True)


def test_the_order_of_a_partition_that_started_again_is_not_that_of_its_former_life(
    order: CompactionOrder,
) -> None:
    sleeper = Sleeper()
    job = CompactionJob(sleeper.sleep)
    job.begin(order, True)
    assert sleeper.is_in_a_pause.wait(DEADLINE_S)
    again = order._replace(epoch=order.epoch + 1, created_ms=order.created_ms + 1)
    job.begin(again)
    with pytest.raises(ServiceUnitNotReady, match="has ended"):
        job.look(order.key)
    sleeper.let_go.set()
    outcome = ended(job, again.key, is_busy=False).outcome
    assert outcome is not None
    directory = Path(order.directory)
    assert numbers_of_forms(directory) == {order.number}
    # A request of the former life that comes late changes nothing.
    job.begin(order, False)
    assert job.look(again.key).outcome == outcome
    found = newest_form(directory)
    assert found is not None
    assert [tuple(segment) for segment in found.segments] == [tuple(each) for each in outcome.segments]
