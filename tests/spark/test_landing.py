"""Landing on a broker in this process, without Ray and Spark."""

from __future__ import annotations

import pickle
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from pulsar_ray.client.consumer.topic_pattern import TopicPattern
from pulsar_ray.clock import SystemClock
from pulsar_ray.data.planning.plan import Bound, Topics
from pulsar_ray.errors import CorruptData, DataLost, InvalidConfiguration, NotConnected
from pulsar_ray.model.message_id import EARLIEST, Position
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray_spark import drop_landing
from pulsar_ray_spark.errors import LandingInUse, LandingMismatch
from pulsar_ray_spark.landing import land as land_module
from pulsar_ray_spark.landing.file_writing import (
    LANDING_COLUMNS,
    FileJob,
    WrittenFile,
    landing_columns,
    write_file,
)
from pulsar_ray_spark.landing.folder import Folder, LocalFolder, ObjectFolder, open_folder
from pulsar_ray_spark.landing.landing import Landing
from pulsar_ray_spark.landing.landing_round import LandingIdentity
from pulsar_ray_spark.landing.round_runner import RoundRunner
from pulsar_ray_spark.rounds import running_rounds
from pulsar_ray_spark.rounds.plan_log import PlanLog, log_topic
from pulsar_ray_spark.rounds.topic_source import PlannedPartition, TopicSource, check_kept, full_names
from tests.conformance.broker import Broker
from tests.spark.streamer import make_anew

NAME = "orders"
ROUNDS = log_topic(f"landing-{NAME}")


class Killed(BaseException):
    """As if the process ended here."""


class Killer:
    """Ends the landing at its `moment`th durable step: a round stored, a file placed, an acknowledgment."""

    def __init__(self, moment: int | None = None, error: type[BaseException] = Killed) -> None:
        self.moment = moment
        self.error = error
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.moment:
            raise self.error


class KilledLog:
    def __init__(self, log: PlanLog, killer: Killer) -> None:
        self._log = log
        self._killer = killer
        self.last = log.last

    def append(self, record: bytes) -> None:
        self._killer.step()
        self._log.append(record)
        self._killer.step()


class KilledFolder(LocalFolder):
    def __init__(self, path: str, killer: Killer) -> None:
        super().__init__(path)
        self._killer = killer

    def place(self, scratch: Path, name: str, time_ms: int) -> None:
        self._killer.step()
        super().place(scratch, name, time_ms)
        self._killer.step()


class KilledSource(TopicSource):
    killer: Killer

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        for name, position in positions.items():
            self.killer.step()
            super().acknowledge({name: position})


def write_here(jobs: Sequence[FileJob]) -> Iterator[WrittenFile]:
    for job in jobs:
        is_killed = type(job.folder) not in (LocalFolder, ObjectFolder)
        yield write_file(job if is_killed else pickle.loads(pickle.dumps(job)))


class Lander:
    """Lands topics of a broker into a folder, as often as a test likes."""

    def __init__(self, broker: Broker, topics: str | list[str] | re.Pattern[str], path: Path) -> None:
        self.broker = broker
        self.topics: Topics = [topics] if isinstance(topics, str) else topics
        self.path = path
        self.columns = landing_columns(None)
        self.file_bytes = 1 << 20
        self.avro_schema = ""
        self.fail_on_data_loss = True

    def log(self) -> PlanLog:
        return land_module.open_rounds(self.broker.client(), self.broker.admin(), NAME)

    def runner(self, log: PlanLog, folder: Folder | None = None, killer: Killer | None = None) -> RoundRunner:
        killer = killer or Killer()
        folder = folder or KilledFolder(str(self.path), killer)
        source = KilledSource(
            self.broker.admin(), self.topics, NAME, fail_on_data_loss=self.fail_on_data_loss
        )
        source.killer = killer
        identity = LandingIdentity(NAME, full_names(self.topics), folder.path, self.columns, self.avro_schema)
        return RoundRunner(
            identity, source, folder, KilledLog(log, killer), write_here, SystemClock(), self.file_bytes
        )

    def land(
        self, start: Bound = "earliest", killer: Killer | None = None, folder: Folder | None = None
    ) -> int:
        """Land all that is there; how many rounds that took."""
        log = self.log()
        try:
            runner = self.runner(log, folder, killer)
            runner.begin(start)
            ends, rounds = runner.ends(), 0
            while runner.land_next(ends) is not None:
                rounds += 1
            return rounds
        finally:
            log.close()

    def files(self) -> dict[str, int]:
        """Names and times of modification."""
        return {path.name: path.stat().st_mtime_ns for path in self.path.glob("*.parquet")}

    def values(self) -> list[str]:
        return [row["value"].decode() for row in self.rows()]

    def rows(self) -> list[dict[str, Any]]:
        in_order = sorted(self.path.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        return [row for path in in_order for row in pq.read_table(path).to_pylist()]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data", "socket", 1)
    yield broker
    broker.close()


@pytest.fixture
def publish(broker: Broker) -> Callable[[str, Iterable[str]], None]:
    client = broker.client()

    def publish(topic: str, values: Iterable[str]) -> None:
        producer = client.create_producer(topic, max_pending_messages=20_000, block_if_queue_full=True)
        for value in values:
            producer.send_async(value.encode(), None, partition_key=value)
        producer.flush()
        producer.close()

    return publish


Publish = Callable[[str, Iterable[str]], None]


def numbered(*bounds: int) -> list[str]:
    return [f"m{number}" for number in range(*bounds)]


def test_every_message_is_in_one_file_with_all_its_columns(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic(partitions=3)
    lander = Lander(broker, topic, tmp_path / "landed")
    assert lander.land() == 0
    publish(topic, numbered(100))
    assert lander.land() == 1
    assert lander.land() == 0
    publish(topic, numbered(100, 150))
    assert lander.land() == 1
    assert sorted(lander.values()) == sorted(numbered(150))
    assert 4 <= len(lander.files()) <= 6
    (row,) = [row for row in lander.rows() if row["value"] == b"m7"]
    assert tuple(row) == LANDING_COLUMNS
    assert row["key"] == "m7"
    assert row["topic"] == f"{topic}-partition-{row['partition']}"
    stats = broker.admin().topics.stats(topic)["partitions"]
    assert [partition["subscriptions"][NAME]["msgBacklog"] for partition in stats.values()] == [0, 0, 0]


def test_messages_are_landed_once_wherever_the_process_ends(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    moment, ended = 0, True
    while ended:
        moment += 1
        topic = broker.topic(partitions=2)
        lander = Lander(broker, topic, tmp_path / str(moment))
        publish(topic, numbered(40))
        ended = False
        for later in (numbered(40, 50), numbered(50, 60)):
            killer = Killer(moment)
            try:
                lander.land(killer=killer)
            except Killed:
                ended = True
            before = lander.files()
            publish(topic, later)
            if ended:
                lander.land()
                assert before.items() <= lander.files().items(), "a file was changed"
        lander.land()
        assert Counter(lander.values()) == Counter(numbered(60)), moment
        broker.admin().topics.delete(ROUNDS, force=True)
    assert moment > 8


def test_a_file_that_is_written_again_is_the_same(broker: Broker, publish: Publish, tmp_path: Path) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(10))
    # Behind two rounds, two steps each, and the file; before the acknowledgment.
    with pytest.raises(Killed):
        lander.land(killer=Killer(6))
    (path,) = lander.path.glob("*.parquet")
    was, content = lander.files(), path.read_bytes()
    path.unlink()
    publish(topic, numbered(10, 20))
    lander.land()
    assert was.items() <= lander.files().items()
    assert path.read_bytes() == content
    assert lander.values() == numbered(20)


def test_a_round_that_is_finished_after_a_crash_misses_what_is_trimmed_meanwhile(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(10))
    # The round is stored, and its file is not there yet.
    with pytest.raises(Killed):
        lander.land(killer=Killer(4))
    assert lander.files() == {}
    broker.admin().topics.truncate(topic)
    with pytest.raises(DataLost, match=f"{topic} from"):
        lander.land()
    publish(topic, numbered(10, 20))
    lander.fail_on_data_loss = False
    lander.land()
    assert lander.values() == numbered(10, 20)


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_that_was_deleted_and_made_anew_is_another_one(
    broker: Broker, publish: Publish, tmp_path: Path, partitions: int, is_empty: bool
) -> None:
    """Its messages behind the last round were never landed, also those of one that was landed as empty."""
    topic, topics = broker.topic(partitions), broker.admin().topics
    lander = Lander(broker, topic, tmp_path / "landed")
    landed = [] if is_empty else numbered(10)
    publish(topic, landed)
    lander.land()
    publish(topic, numbered(10, 20))
    make_anew(topics, topic, partitions)
    publish(topic, numbered(20, 25))
    for _ in range(2):
        with pytest.raises(DataLost, match=f"{topic}.*made anew since.*fail_on_data_loss=False"):
            lander.land()
    assert sorted(lander.values()) == sorted(landed)
    lander.fail_on_data_loss = False
    lander.land()
    lander.fail_on_data_loss = True
    publish(topic, numbered(25, 30))
    lander.land()
    assert sorted(lander.values()) == sorted([*landed, *numbered(20, 30)])


def test_a_round_of_a_topic_that_was_replaced_before_its_files_were_there_is_missed(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(10))
    with pytest.raises(Killed):
        lander.land(killer=Killer(4))
    broker.admin().topics.delete(topic, force=True)
    broker.admin().topics.create_topic(topic)
    with pytest.raises(DataLost, match=f"{topic}.*made anew since"):
        lander.land()


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_listed_topic_that_is_deleted_ends_a_landing_unless_messages_may_be_lost(
    broker: Broker, publish: Publish, tmp_path: Path, is_planned: bool
) -> None:
    topics, admin = [broker.topic(), broker.topic()], broker.admin().topics
    lander = Lander(broker, topics, tmp_path / "landed")
    for number, topic in enumerate(topics):
        publish(topic, numbered(number * 10, number * 10 + 10))
    lander.land()
    for number, topic in enumerate(topics):
        publish(topic, numbered(20 + number * 10, 30 + number * 10))
    if is_planned:
        with pytest.raises(Killed):
            lander.land(killer=Killer(2))
    admin.delete(topics[1], force=True)
    for _ in range(2):
        with pytest.raises(DataLost, match=f"{topics[1]} was deleted.*{NAME}.*fail_on_data_loss=False"):
            lander.land()
    lander.fail_on_data_loss = False
    lander.land()
    lander.land()
    assert sorted(lander.values()) == sorted(numbered(30))
    admin.create_topic(topics[1])
    admin.create_subscription(topics[1], "keep")
    publish(topics[1], numbered(40, 45))
    lander.land()
    assert sorted(lander.values()) == sorted([*numbered(30), *numbered(40, 45)])


def test_files_that_were_landed_before_their_topic_was_deleted_are_no_loss(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    lander = Lander(broker, re.compile(r"persistent://public/default/t\d+"), tmp_path / "landed")
    publish(topic, numbered(10))
    with pytest.raises(Killed):
        lander.land(killer=Killer(6))  # the file is there, and nothing is acknowledged
    assert len(lander.files()) == 1
    broker.admin().topics.delete(topic, force=True)
    lander.land()
    assert lander.values() == numbered(10)


def test_a_landing_whose_messages_were_truncated_ends_with_the_error(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(10))
    lander.land()
    publish(topic, numbered(10, 20))
    broker.admin().topics.truncate(topic)
    publish(topic, numbered(20, 25))
    log = lander.log()
    landing = Landing(NAME, lambda _: lander.runner(log), "earliest", 0.01)
    with pytest.raises(DataLost, match=f"{topic} from"):
        landing.await_termination(60)
    assert not landing.is_active


def test_a_round_whose_file_is_there_misses_nothing_that_is_trimmed_since(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(10))
    with pytest.raises(Killed):
        lander.land(killer=Killer(6))
    broker.admin().topics.truncate(topic)
    publish(topic, numbered(10, 20))
    lander.land()
    assert lander.values() == numbered(20)


def test_large_ranges_become_several_files_in_order(broker: Broker, publish: Publish, tmp_path: Path) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    lander.file_bytes = 1
    for first in range(0, 13_000, 1000):
        publish(topic, numbered(first, first + 1000))  # a range is cut between frames alone
    lander.land()
    assert len(lander.files()) > 1
    by_position = sorted(lander.rows(), key=lambda row: (row["ledger_id"], row["entry_id"]))
    assert [row["value"] for row in by_position] == [value.encode() for value in numbered(13_000)]


def test_one_process_at_a_time(broker: Broker, publish: Publish, tmp_path: Path) -> None:
    lander = Lander(broker, broker.topic(), tmp_path / "landed")
    log = lander.log()
    with pytest.raises(LandingInUse, match="runs already, here or in another process: stop it first"):
        lander.log()
    log.append(b"1")
    log.close()
    successor = lander.log()
    assert successor.last == b"1"
    for number in range(2, 250):
        successor.append(b"%d" % number)
    successor.close()
    assert lander.log().last == b"249"
    stats = broker.admin().topics.stats(ROUNDS)
    assert stats["subscriptions"][PlanLog.HOLD]["msgBacklog"] < 150


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_the_start_counts_once(broker: Broker, publish: Publish, tmp_path: Path, start: Bound) -> None:
    topic = broker.topic()
    publish(topic, numbered(10))
    lander = Lander(broker, topic, tmp_path / "landed")
    lander.land(start)
    publish(topic, numbered(10, 20))
    lander.land("latest")
    assert lander.values() == numbered(0 if start == "earliest" else 10, 20)


def test_topics_and_partitions_that_come_later_are_taken_from_their_start(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    first = broker.topic(partitions=1)
    lander = Lander(broker, re.compile("persistent://public/default/(t[0-9]+|late)"), tmp_path / "landed")
    publish(first, numbered(10))
    lander.land()
    broker.admin().topics.update_partitioned_topic(first, 3)
    publish(first, numbered(10, 40))
    publish("late", numbered(40, 50))
    lander.land("latest")
    assert sorted(lander.values()) == sorted(numbered(50))


def test_other_arguments_under_a_known_name_are_refused(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic, other = broker.topic(), broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(3))
    lander.land()
    with pytest.raises(LandingMismatch, match=f"was begun with topics=.*{topic}"):
        Lander(broker, other, tmp_path / "landed").land()
    with pytest.raises(LandingMismatch, match="was begun with path="):
        Lander(broker, topic, tmp_path / "elsewhere").land()
    lander.columns = ("key",)
    with pytest.raises(LandingMismatch, match="was begun with columns="):
        lander.land()
    broker.admin().topics.delete(ROUNDS, force=True)
    with pytest.raises(LandingMismatch, match=f"is the folder of landing '{NAME}'"):
        lander.land()


def test_a_landing_in_the_folder_of_another_is_refused_and_leaves_what_that_one_writes(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(3))
    lander.land()
    half_written = LocalFolder(str(lander.path)).scratch()
    half_written.write_text("half")
    broker.admin().topics.delete(ROUNDS, force=True)
    with pytest.raises(LandingMismatch, match="take another path"):
        lander.land()
    assert half_written.exists()


def test_a_landing_that_runs_is_not_dropped(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, admin = broker.topic(), broker.admin()
    monkeypatch.setattr(land_module, "Client", lambda _: broker.client())
    monkeypatch.setattr(land_module, "Admin", lambda _: nullcontext(admin))
    log = land_module.open_rounds(broker.client(), admin, NAME)
    admin.topics.create_subscription(topic, land_module.subscription_of(NAME))
    log.append(b"1")
    with pytest.raises(LandingInUse):
        drop_landing(NAME, topic)
    assert admin.topics.subscriptions(topic) == [land_module.subscription_of(NAME)]
    assert admin.topics.subscriptions(ROUNDS) == [PlanLog.HOLD]
    log.close()
    for _ in range(2):
        drop_landing(NAME, topic)
    assert admin.topics.subscriptions(topic) == []
    assert ROUNDS not in admin.topics.list()


def test_no_pattern_lands_the_rounds_of_landings() -> None:
    assert not TopicPattern(re.compile(".*")).matches(ROUNDS)


@pytest.mark.parametrize(
    ("asked", "trimmed", "lost"),
    [
        (EARLIEST, Position(7, 2), False),
        (Position(5, 2), Position(5, 1), False),
        (Position(5, 2), Position(5, 2), True),
        (Position(5, 2), Position(6, 0), True),
        (Position(5, 2), EARLIEST, False),
    ],
)
def test_messages_that_are_gone_are_missed(asked: Position, trimmed: Position, lost: bool) -> None:
    first = max(asked, trimmed.next())
    planned = PlannedPartition("t", -1, first, Position(8, 0), [first], trimmed, 0)
    with pytest.raises(DataLost, match="t from 5:2 to") if lost else nullcontext():
        check_kept(planned, asked, NAME)


def test_few_columns(broker: Broker, publish: Publish, tmp_path: Path) -> None:
    topic = broker.topic()
    publish(topic, numbered(3))
    for columns in (("topic",), ("key", "partition"), ("publish_time",)):
        lander = Lander(broker, topic, tmp_path / columns[0])
        lander.columns = columns
        lander.land()
        assert [tuple(row) for row in lander.rows()] == [columns] * 3
        broker.admin().topics.delete(ROUNDS, force=True)
    with pytest.raises(InvalidConfiguration, match=r"columns=\['age'\]: give at least one of key, value"):
        landing_columns(["age"])


def test_values_of_an_avro_schema_are_structs_which_a_landing_keeps(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    publish(topic, ["\x02a", "\x04bc", "\x08a"])
    lander = Lander(broker, topic, tmp_path / "landed")
    lander.avro_schema = '{"type": "record", "name": "r", "fields": [{"name": "note", "type": "string"}]}'
    lander.land()
    rows = [(row["value"], row["_corrupt_record"]) for row in lander.rows()]
    assert rows == [({"note": "a"}, None), ({"note": "bc"}, None), (None, b"\x08a")]
    lander.avro_schema = ""
    with pytest.raises(LandingMismatch, match="begun with avro_schema="):
        lander.land()
    with pytest.raises(InvalidConfiguration, match="no 'value'"):
        land_module._check_avro('{"type": "record", "name": "r", "fields": []}', ("key",))
    with pytest.raises(InvalidConfiguration, match="no Avro schema"):
        land_module._check_avro("{", ("value",))


def test_an_object_store_gets_whole_objects(broker: Broker, publish: Publish, tmp_path: Path) -> None:
    topic = broker.topic()
    publish(topic, numbered(10))
    lander = Lander(broker, topic, tmp_path / "bucket" / "landed")
    store = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    folder = open_folder("bucket/landed", store)
    assert isinstance(folder, ObjectFolder)
    lander.land(folder=folder)
    publish(topic, numbered(10, 20))
    lander.land(folder=folder)
    assert lander.values() == numbered(20)
    assert sorted(folder.names()) == sorted([*lander.files(), "_landing.json"])
    folder.delete(next(iter(lander.files())))
    assert len(lander.files()) == 1


def test_paths(tmp_path: Path) -> None:
    assert open_folder(tmp_path).path == open_folder(f"file://{tmp_path}").path == str(tmp_path)
    with pytest.raises(InvalidConfiguration, match="leads to no file system"):
        open_folder("nowhere://bucket")


def test_a_landing_tries_again_after_errors_that_pass_and_ends_with_others(
    broker: Broker, publish: Publish, tmp_path: Path
) -> None:
    topic = broker.topic()
    publish(topic, numbered(10))
    lander = Lander(broker, topic, tmp_path / "landed")
    errors = [NotConnected("away"), CorruptData("file", 7)]
    log = lander.log()
    runner = lander.runner(log)
    land_next = runner.land_next

    def failing(ends: Mapping[str, Position]) -> object:
        result = land_next(ends)
        if result is None and errors:
            raise errors.pop(0)
        return result

    runner.land_next = failing  # type: ignore[assignment,method-assign]
    landing = Landing(NAME, lambda _: runner, "earliest", 0.01)
    with pytest.raises(CorruptData, match="file is corrupt at byte 7"):
        landing.await_termination(60)
    assert not landing.is_active
    assert isinstance(landing.exception(), CorruptData)
    assert landing.status["message"].startswith("Failed: CorruptData")
    assert lander.values() == numbered(10)
    (progress,) = landing.recent_progress
    assert (progress["round"], progress["files"], progress["messages"]) == (1, 1, 10)


@pytest.mark.parametrize("error", [NotConnected, OSError])
def test_messages_are_landed_once_whatever_step_fails(
    broker: Broker, publish: Publish, tmp_path: Path, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_rounds, "_FIRST_PAUSE_S", 0.0)
    moment, failed = 0, True
    while failed:
        moment += 1
        topic = broker.topic()
        lander = Lander(broker, topic, tmp_path / str(moment))
        publish(topic, numbered(10))
        log, killer = lander.log(), Killer(moment, error)
        runner = lander.runner(log, killer=killer)
        landing = Landing(NAME, lambda _, opened=runner: opened, "earliest", 0.01)  # type: ignore[misc]
        wait_until(lambda one=lander: one.values() == numbered(10), what="landed messages")  # type: ignore[misc]
        publish(topic, numbered(10, 20))
        wait_until(lambda one=lander: len(one.values()) == 20, what="landed messages")  # type: ignore[misc]
        landing.stop()
        assert Counter(lander.values()) == Counter(numbered(20)), moment
        log.close()
        failed = killer.steps >= moment
        broker.admin().topics.delete(ROUNDS, force=True)
    assert moment > 8


def test_a_landing_goes_on_until_it_is_stopped(broker: Broker, publish: Publish, tmp_path: Path) -> None:
    topic = broker.topic()
    lander = Lander(broker, topic, tmp_path / "landed")
    log = lander.log()
    landing = Landing(NAME, lambda stack: lander.runner(log), "earliest", 0.01)
    for first in (0, 10):
        publish(topic, numbered(first, first + 10))
        wait_until(lambda end=first + 10: len(lander.values()) == end, what="landed messages")  # type: ignore[misc]
    assert landing.is_active
    assert landing.exception() is None
    assert not landing.await_termination(0.01)
    landing.stop()
    assert landing.status == {"message": "Stopped", "is_active": False}
    assert landing.await_termination()
    assert lander.values() == numbered(20)
    assert threading.active_count() < 50


def test_a_landing_has_begun_when_its_folder_can_be_read(broker: Broker, tmp_path: Path) -> None:
    lander = Lander(broker, broker.topic(), tmp_path / "landed")
    log = lander.log()
    with Landing(NAME, lambda _: lander.runner(log), "earliest", 60) as landing:
        landing.await_begin()
        assert open_folder(lander.path).description() is not None
    log.close()
    other = Landing(
        NAME, lambda _: Lander(broker, broker.topic(), tmp_path).runner(lander.log()), "earliest", 60
    )
    with pytest.raises(LandingMismatch, match="was begun with topics="):
        other.await_begin()


def test_a_start_that_is_interrupted_leaves_no_landing_behind(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lander = Lander(broker, broker.topic(), tmp_path / "landed")
    log = lander.log()
    landing = Landing(NAME, lambda _: lander.runner(log), "earliest", 60)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(landing._begun, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        landing.await_begin()
    assert not landing.is_active
    log.close()


def test_a_landing_that_is_stopped_while_it_waits_for_its_broker_has_not_failed() -> None:
    tried = threading.Event()

    def open_runner(_: object) -> RoundRunner:
        tried.set()
        raise NotConnected("away")

    landing = Landing(NAME, open_runner, "earliest", 60)
    assert tried.wait(20)
    landing.stop()
    assert landing.await_termination()
    assert (landing.status["message"], landing.exception()) == ("Stopped", None)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (3, 2)])
def test_a_topic_that_is_made_anew_with_other_partitions_ends_a_landing_unless_messages_may_be_lost(
    broker: Broker, publish: Publish, tmp_path: Path, before: int, after: int
) -> None:
    topic, topics = broker.topic(before), broker.admin().topics
    lander = Lander(broker, topic, tmp_path / "landed")
    publish(topic, numbered(9))
    lander.land()
    publish(topic, numbered(9, 30))
    make_anew(topics, topic, after)
    publish(topic, numbered(30, 40))
    for _ in range(2):
        with pytest.raises(DataLost, match=f"{topic}.* was deleted|{topic}.*made anew since"):
            lander.land()
    lander.fail_on_data_loss = False
    lander.land()
    assert Counter(lander.values()) == Counter([*numbered(9), *numbered(30, 40)])
