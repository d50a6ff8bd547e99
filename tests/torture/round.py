"""One round in this process: work, faults, calm, and a verdict on all that was recorded."""

from __future__ import annotations

import faulthandler
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.errors import PulsarException
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.testing.stub_cluster import STORE
from pulsar_ray.transport.actor_names import dispatcher_name
from tests.faults.history.checker import Violation, judge
from tests.faults.history.operations import ClockShown, MarkDeleted, note
from tests.faults.journal import Journal
from tests.torture.administering import Administering
from tests.torture.broker import TorturedBroker
from tests.torture.clients import Consuming, Notes, Producing, Working
from tests.torture.compacting import SUBSCRIPTION, Compacting
from tests.torture.damage import suffer_damage
from tests.torture.plan import LEASE_S, Fault, plan_of
from tests.torture.reads import Reading
from tests.torture.scene_record import SceneRecord, subscribers_of
from tests.torture.scenes import Scene

TRANSPORTS = ("socket", "socket", "tcp", "ray")
MEAN_PAUSE_MS = 220
READ_LOG_S = 60
CATCH_UP_S = 60.0
"""So long nothing may be missing without any of it coming."""
END_S = 60.0
TOLD = ("msgBacklog", "msgDelayed", "unackedMessages", "markDeletePosition", "readPosition", "stuckReason")
TOLD_OF_CONSUMERS = ("consumerName", "availablePermits", "unackedMessages", "carrier", "readsFiles")
SETTINGS = {
    "default_retention_time_in_minutes": -1,
    "default_retention_size_in_mb": -1,
    "managed_ledger_max_entries_per_ledger": 60,
    "managed_ledger_min_ledger_rollover_time_minutes": 0,
    "new_topic_retention_seconds": 0,
    "index_checkpoint_entries": 20,
    "is_delayed_delivery_deliver_at_time_strict": True,
    "max_num_delayed_delivery_tracker_memory_entries": 30,
    "session_lease_seconds": LEASE_S,
}


@dataclass
class RoundResult:
    """What happened in a round; `violations` is empty in a good one."""

    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class SceneRun:
    """A scene's topic, clients and reads on a broker."""

    def __init__(self, scene: Scene, broker: TorturedBroker, directory: Path, seed: int) -> None:
        self.scene = scene
        self.broker = broker
        self.notes = Notes(directory, scene.topic, broker.clock)
        self.journal = Journal(directory / f"run-{scene.name}.journal")
        self.record = SceneRecord(scene, self.notes, self.journal)
        self._rng = random.Random(seed)
        self._declare()
        self.producers = [
            Producing(f"{scene.name}-p{n}", plan, self.notes, self._new_client, self._rng.randrange(1 << 30))
            for n, plan in enumerate(scene.producers)
        ]
        self.consumers = [
            Consuming(
                f"{scene.name}-{plan.subscription}{n}",
                plan,
                self.notes,
                self._new_client,
                self._rng.randrange(1 << 30),
            )
            for plan in scene.consumers
            for n in range(plan.consumers)
        ]
        self.reads = [
            Reading(
                f"{scene.name}-{how}",
                scene.partition_names,
                how,
                broker.bulk_cluster(),
                self.notes,
                self._new_client,
                self._rng.randrange(1 << 30),
            )
            for how in scene.reads
        ]

        self.administrators = [
            Administering(
                f"{scene.name}-admin",
                broker.admin,
                self.notes,
                self._new_client,
                self._rng.randrange(1 << 30),
            )
            for _ in range(scene.is_administered)
        ]
        self.compacting = [
            Compacting(
                f"{scene.name}-compacting",
                broker.admin,
                broker.kill,
                self.notes,
                self._new_client,
                self._rng.randrange(1 << 30),
            )
            for _ in range(scene.is_compacted)
        ]

    def _new_client(self) -> Client:
        return self.broker.client(self._rng.choice(TRANSPORTS))

    @property
    def workers(self) -> list[Working]:
        return [*self.producers, *self.consumers, *self.reads, *self.administrators, *self.compacting]

    @property
    def targets(self) -> list[tuple[str, list[str]]]:
        """Partitions and their subscriptions, which faults may hit."""
        names = [plan.subscription for plan in self.scene.consumers]
        tables = [(each.table, [SUBSCRIPTION]) for each in self.compacting]
        return [*((partition, names) for partition in self.scene.partition_names), *tables]

    def _declare(self) -> None:
        if self.scene.partitions or self.record.is_kept:
            self.broker.cluster.create_topic(self.scene.topic, self.scene.partitions)
        client = self.broker.client("socket")
        with Admin._on(self.broker.cluster) as admin:
            self.record.declare(client, admin)
        client.close()

    def describe(self, subscriptions: Collection[str]) -> None:
        """Print how subscriptions stand that give less than they should, at both ends."""
        for partition in self.scene.partition_names:
            for name in subscriptions:
                address = dispatcher_name(partition, name, durable=True)
                actor = self.broker.cluster.actors.last(address)
                error = None if actor is None else actor.body.start_error
                print(f"{partition} {name}: {actor}, start failed with {error!r}", file=sys.stderr)
                with suppress(PulsarException, RuntimeError, AttributeError):
                    server = self.broker.cluster.dispatcher_of(partition, name).server
                    stats = server.stats()["subscriptions"][name]  # type: ignore[union-attr]
                    print(f"{partition} {name}: { ({key: stats[key] for key in TOLD}) }", file=sys.stderr)
                    for consumer in stats["consumers"]:
                        print(f"    { ({key: consumer[key] for key in TOLD_OF_CONSUMERS}) }", file=sys.stderr)
        print(f"    the last error: {self.notes.last_error!r}", file=sys.stderr)
        for worker in self.consumers:
            if worker.plan.subscription in subscriptions and worker.consumer is not None:
                for partition_consumer in worker.consumer.core.partitions.all:
                    deliveries = partition_consumer.deliveries
                    print(
                        f"    {worker.name}: holds {partition_consumer.ack_sender.unacked.declared()}, "
                        f"queue {worker.consumer.core.queue.messages_of(deliveries)}, "
                        f"unanswered {len(partition_consumer.requests.unanswered())}, "
                        f"open {partition_consumer.requests.is_open}, last {deliveries.last_number}",
                        file=sys.stderr,
                    )

    def note_mark_deletes(self) -> None:
        """How far the broker says that its subscriptions are."""
        for index, partition in enumerate(self.scene.partition_names if self.record.is_kept else ()):
            for plan in self.scene.consumers:
                asked_ns = time.monotonic_ns()
                with suppress(PulsarException, RuntimeError, AttributeError):
                    server = self.broker.cluster.dispatcher_of(partition, plan.subscription).server
                    stats = server.stats()["subscriptions"][plan.subscription]  # type: ignore[union-attr]
                    ledger, entry = stats["markDeletePosition"]
                    place = (index if self.scene.partitions else -1, ledger, entry)
                    note(self.journal, MarkDeleted(self.scene.topic, plan.subscription, *place, asked_ns))


def run_round(
    directory: Path, seed: int, seconds: float, scenes: Sequence[Scene], kinds: Collection[str] = ()
) -> RoundResult:
    """Run scenes under the plan of a seed, and judge them. The directory keeps the history and the data."""
    result = RoundResult()
    data = directory / "data"
    history, journal = new_history(directory)
    broker = TorturedBroker(data, journal, seed, **SETTINGS)
    with broker.disk.installed():
        plan = plan_of(seed, int(seconds * 1000), MEAN_PAUSE_MS, kinds)
        runs = carry_out(broker, history, journal, scenes, seed, plan, seconds, result)
    judge_history(history, broker, runs, result)
    write_identity(data, StoreIdentity(STORE))
    result.violations += [f"verify: {damage}" for damage in verify_directory(data).damages]
    if not result.violations:
        logs = {partition: log for run in runs for partition, log in run.record.logs().items()}
        # What expires meanwhile cannot be told from what is lost.
        subscribers = [each for run in runs if not run.scene.ttl_ms for each in subscribers_of(run.scene)]
        counts, wrong = suffer_damage(data, logs, subscribers, seed)
        result.faults.update(counts)
        result.violations += wrong
    return result


def new_history(directory: Path) -> tuple[Path, Journal]:
    """Make the place of a round's history, with the journal of the round itself."""
    history = directory / "history"
    history.mkdir(parents=True)
    return history, Journal(history / "run.journal")


def carry_out(
    broker: TorturedBroker,
    history: Path,
    journal: Journal,
    scenes: Sequence[Scene],
    seed: int,
    plan: list[Fault],
    seconds: float,
    result: RoundResult,
) -> list[SceneRun]:
    """Let scenes work while the broker suffers, come to an end, and close the broker."""
    runs = [SceneRun(scene, broker, history, seed + n) for n, scene in enumerate(scenes)]
    try:
        _work(runs, broker, plan, seconds)
        _come_to_an_end(runs, broker, result)
    except Exception as error:  # noqa: BLE001 - the history is judged all the same
        result.violations.append(f"the round did not end well: {error!r}")
        traceback.print_exception(error)
        faulthandler.dump_traceback(sys.stderr)
        broker.describe()
    note(journal, ClockShown(broker.clock.highest_ms()))
    broker.close()
    return runs


def judge_history(
    history: Path,
    broker: TorturedBroker,
    runs: Sequence[SceneRun],
    result: RoundResult,
    counts: Callable[[Violation], bool] = lambda _: True,
) -> None:
    """Add what was counted, and the promises that were broken, of those that count."""
    result.faults.update(broker.counts)
    result.violations += [
        f"an actor ended of an unexpected error:\n{error}"
        for error in broker.fatal_errors
        if not any(expected in error for expected in broker.expected_errors)
    ]
    for run in runs:
        result.errors.update(run.notes.errors)
    verdict = judge(history)
    result.operations.update(verdict.operations)
    result.violations += [str(violation) for violation in verdict.violations if counts(violation)]


def _work(runs: list[SceneRun], broker: TorturedBroker, plan: list[Fault], seconds: float) -> None:
    broker.targets = [target for run in runs for target in run.targets]
    for run in runs:
        for worker in run.workers:
            worker.start()
    began = time.monotonic()
    stop = threading.Event()
    suffering = threading.Thread(
        target=broker.suffer, args=(plan, stop, lambda: time.monotonic() - began), daemon=True
    )
    suffering.start()
    sleepy = [name for run in runs if run.scene.is_sleepy for name in run.scene.partition_names]
    putting_to_sleep = threading.Thread(target=broker.keep_putting_to_sleep, args=(sleepy, stop), daemon=True)
    putting_to_sleep.start()
    while time.monotonic() < began + seconds:
        for run in runs:
            run.note_mark_deletes()
        stop.wait(0.5)
    suffering.join()
    stop.set()
    putting_to_sleep.join()
    broker.heal()


def _come_to_an_end(runs: list[SceneRun], broker: TorturedBroker, result: RoundResult) -> None:
    """Producers first; consumers when they have all that is stored; then the rest is looked at."""
    ending = [(*run.producers, *run.reads, *run.administrators, *run.compacting) for run in runs]
    _end([worker for workers in ending for worker in workers], result)
    client = broker.client("socket", READ_LOG_S)  # nothing can be judged without the log
    for run in runs:
        run.record.read_log(client)
        for consumer in run.consumers:
            consumer.is_calm = True
    end, least = time.monotonic() + CATCH_UP_S, -1
    while time.monotonic() < end and (left := sum(run.record.count_missing(client) for run in runs)):
        if not 0 <= least <= left:
            end, least = time.monotonic() + CATCH_UP_S, left
        time.sleep(0.2)
    for run in runs:
        if missing := run.record.missing():
            amounts = {name: len(numbers) for name, numbers in missing.items()}
            print(f"{run.scene.name}: not given after {CATCH_UP_S} s: {amounts}", file=sys.stderr)
            run.describe(missing)
    _end([consumer for run in runs for consumer in run.consumers], result)
    for run in runs:
        if run.scene.is_administered:
            run.record.note_values(broker.admin())
        for table in run.compacting:
            _judge_table(table, client, result)
        run.record.note_letters(client)
        run.record.note_what_remains(client)
    client.close()


def _judge_table(table: Compacting, client: Client, result: RoundResult) -> None:
    result.operations["looks at a compacted view"] += table.looks
    result.operations["messages of a compacted view"] += len(table.given)
    try:
        table.judge(client)
    except (AssertionError, PulsarException) as error:
        result.violations.append(f"{table.table}: {error!r}")


def _end(workers: list[Working], result: RoundResult) -> None:
    for worker in workers:
        worker.stopped.set()
    end = time.monotonic() + END_S
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
        if worker.is_alive():
            result.violations.append(f"{worker.name} stands still for {END_S} s")
            faulthandler.dump_traceback(sys.stderr)
        if worker.error:
            result.violations.append(f"{worker.name} failed:\n{worker.error}")
