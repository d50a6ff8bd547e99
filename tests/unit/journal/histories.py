"""Histories of stores, controllers and an object store under faults, through the journal's real classes.

    python -m tests.unit.journal.histories [HISTORIES] [FIRST_SEED]

What is judged, for each history:
- synchronous: what was confirmed, or shown, is in every later owner's log; acknowledgments are not undone
- asynchronous: a takeover loses an end of what was confirmed, no more than the lag bound; a restart nothing
- a position has one content for ever, a term has one store; a cursor is never beyond its log, nor behind what
  nobody consumed; what was deleted stays deleted
- when the faults are over each partition is served by one store; also when all disks are lost then
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from pulsar_ray.errors import PulsarException
from pulsar_ray.journal.objects import (
    PIECES,
    SEALED,
    CatalogEntry,
    catalog_key,
    journal_prefix,
    ledger_of,
    unpack_entry,
    unpack_journal,
)
from pulsar_ray.journal.ownership import Ownership, first_ledger
from pulsar_ray.journal.reading import walk
from pulsar_ray.journal.requests import (
    CREATED,
    EXISTS,
    UNKNOWN,
    Create,
    Delete,
    Get,
    ListKeys,
    Shipped,
    Wait,
)
from tests.unit.journal.history_disks import At, Copy, Disk
from tests.unit.journal.history_processes import Controller, Node, Process, Store, Writer

SHORT_LIVED = "short-lived"
"""This partition is removed in the middle of a history, if it is there at all."""


class Violation(Exception):
    """A promise of the journal does not hold."""


class Served:
    def __init__(self, key: At, store: str, log: dict[At, int], front: At, cursor: At) -> None:
        self.key, self.store, self.log, self.front, self.cursor = key, store, log, front, cursor


class Truth:
    """What the world was told of one partition; a key is (term, life)."""

    def __init__(self) -> None:
        self.confirmed: dict[At, tuple[int, At, float, str]] = {}
        self.promised: dict[At, At] = {}
        self.shown: dict[At, int] = {}
        self.left: set[int] = set()
        """Terms whose owner had it leave, with all of it."""
        self.lost: set[At] = set()
        self.losses: dict[int, list[float]] = {}
        self.acked: set[int] = set()
        self.receipts: list[tuple[At, At]] = []
        self.deleted: list[tuple[At, int]] = []
        self.served: list[Served] = []
        self.last = -1.0


class World:
    """One history: faults for a while, then everything works, then all disks are lost."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now, self.turn, self.names = random.Random(seed), 0.0, 0, 0
        self.queue: list[tuple[float, int, Callable[[], object]]] = []
        choice = self.rng.choice
        self.sync, self.window, self.bound = (
            self.rng.random() < 0.6,
            choice((1, 2, 4, 8)),
            choice((4, 10, 25)),
        )
        self.loss, self.late, self.twice = choice((0, 0.03, 0.1)), choice((0.02, 0.1, 0.2)), choice((0, 0.1))
        self.disk_time, self.put_time = choice((0.1, 1, 4)), choice((1, 3, 8))
        self.traffic_rate, self.fault_rate = choice((0.7, 1.5)), choice((0.02, 0.04, 0.08))
        self.suspicion, self.patience = choice((0, 0.01, 0.05)), choice((2, 5, 10))
        self.aside = random.Random(seed)
        self.offloads = self.aside.choice((0, 0, 0.03, 0.15))
        self.moves, self.checkpoints = choice((0, 0.02, 0.05)), choice((0.03, 0.1))
        self.entries_of_a_snapshot = choice((1, 3, 8))
        self.objects: dict[str, bytes] = {}
        self.decided: list[CatalogEntry] = []
        self.outage, self.healed = False, False
        self.counts: Counter[str] = Counter()
        self.cut: set[Node] = set()
        self.truths = {f"p{n}": Truth() for n in range(choice((1, 2, 3)))}
        self.is_removed = False
        """Whether a partition was removed, of which nothing is asked any more."""
        if self.aside.random() < 0.5:
            self.truths[SHORT_LIVED] = Truth()
            self.after(self.aside.uniform(30, 200), self.remove)
        self.fronts: dict[str, int] = {}
        """What was deleted when all disks had been lost."""
        self.old_pieces: list[str] = []
        self.leaving: set[str] = set()
        """Partitions that a move holds."""
        self.latenesses = self.aside.choice(((0.0, 0.01), (0.0, 0.01), (0.01, 2.0), (0.01, 30.0)))
        self.disk_faults = self.aside.choice((0.0, 0.0, 0.1))
        self.nodes = [Node(Disk(self)) for _ in range(choice((2, 3, 4)))]
        self.controllers = [Controller(self, None) for _ in range(choice((1, 2, 2)))]
        for node in self.nodes:
            node.process = Store(self, node)

    def name(self) -> int:
        self.names += 1
        return self.names

    def ownership(self) -> Ownership:
        return Ownership(entries_of_a_snapshot=self.entries_of_a_snapshot)

    def nonce(self) -> bytes:
        return self.name().to_bytes(8, "big")

    def after(self, delay: float, call: Callable[[], object]) -> None:
        self.turn += 1
        heapq.heappush(self.queue, (self.now + delay, self.turn, call))

    def stores(self) -> list[Store]:
        return [node.process for node in self.nodes]

    def writers(self, partition: str) -> list[Writer]:
        found = [node.writer(partition) for node in self.nodes]
        return [each for each in found if each is not None]

    def lateness(self) -> float:
        """Return how long something waits in a node until its process comes to it."""
        return 0.0 if self.healed else self.aside.uniform(*self.latenesses)

    # ---- the processes of partitions
    def begin_writer(self, node: Node, partition: str) -> None:
        if (former := node.writers.get(partition)) is not None:
            former.die()
        self.counts["opened"] += 1
        self.counts["opened before its journal was ready"] += not node.process.life.is_ready
        node.writers[partition] = Writer(self, node, partition)

    def open_later(self, node: Node, partition: str, delay: float) -> None:
        def due() -> None:
            node.process.begin(node.process.open(partition))

        self.after(delay, due)

    def wanted(self) -> list[str]:
        """Return the partitions that nobody has removed."""
        return [each for each in self.truths if not (self.is_removed and each == SHORT_LIVED)]

    def remove(self) -> None:
        """Remove a partition at its owner, whatever that does just now."""
        owner = self.deciding(SHORT_LIVED)[0]
        for node in self.nodes:
            if node.disk.store == owner and node.process.alive and SHORT_LIVED not in self.leaving:
                self.is_removed = True
                node.process.begin(node.process.remove(SHORT_LIVED))
                return
        self.after(5, self.remove)

    def place(self) -> None:
        """Start partitions that do not run where the catalog has them, and at times where it had them."""
        self.after(self.aside.uniform(3, 10), self.place)
        for partition in self.wanted():
            owner = self.deciding(partition)[0]
            for node in self.nodes:
                if node.disk.store == owner or (not self.healed and self.aside.random() < 0.05):
                    self.open_later(node, partition, self.aside.uniform(0, 3))

    # ---- the object store
    def remote(self, wanted: Any) -> Any:
        if isinstance(wanted, Get):
            return self.objects.get(wanted.key)
        if isinstance(wanted, ListKeys):
            return sorted(k for k in self.objects if k.startswith(wanted.prefix))
        if isinstance(wanted, Delete):
            for key in wanted.keys:
                self.objects.pop(key, None)
            return None
        return self.create(wanted)

    def create(self, wanted: Create) -> str:
        if wanted.key in self.objects:
            return EXISTS
        self.objects[wanted.key] = wanted.body
        if wanted.key == catalog_key(len(self.decided)):
            self.decided.append(unpack_entry(wanted.key, wanted.body))
        return CREATED

    def when_shipped(self, process: Process, task: Any, wanted: Shipped) -> None:
        assert isinstance(process, Store)
        if process.life.shipping.shipped >= wanted.turn:
            self.after(0, lambda: process.begin(task))
        elif process.alive:
            self.after(0.5, lambda: self.when_shipped(process, task, wanted))

    def carry_out(self, process: Process, task: Any, wanted: Any) -> None:  # noqa: PLR0911
        rng = self.rng
        if isinstance(wanted, Wait):
            return self.after(wanted.seconds, lambda: process.begin(task))
        if isinstance(wanted, Shipped):
            return self.when_shipped(process, task, wanted)
        if isinstance(wanted, Delete):
            if wanted.is_awaited:
                return self.after(0.3, lambda: process.begin(task, self.remote(wanted)))
            for key in wanted.keys:
                self.after(rng.choice((0.3, rng.uniform(0, 60))), partial(self.objects.pop, key, None))
            return self.after(0, lambda: process.begin(task))
        luck, write = rng.random(), isinstance(wanted, Create)
        if self.outage or process.node in self.cut or luck < self.loss:
            return self.after(8, lambda: process.begin(task, UNKNOWN))
        if (
            write and luck < self.loss + self.late
        ):  # it arrives some time, perhaps long after; its answer does not
            late = rng.choice((1, rng.uniform(5, 20), rng.uniform(5, 150)))
            self.after(late, lambda: self.remote(wanted))
            return self.after(8, lambda: process.begin(task, UNKNOWN))

        def arrive() -> None:
            answer = self.remote(wanted)
            if luck > 1 - self.twice:
                answer = self.remote(wanted)  # something on the way sends it again
            self.after(rng.uniform(0.02, 0.3), lambda: process.begin(task, answer))

        return self.after(rng.uniform(0.2, self.put_time) if write else rng.uniform(0.02, 0.3), arrive)

    # ---- the checker
    def check_serve(self, writer: Writer) -> None:  # noqa: C901
        copy, key, store = writer.copy, writer.key, writer.disk.store
        truth, log, front = self.truths[writer.partition], copy.log(), (copy.front(), 0)
        place, contents, cursor = dict(log), [c for _, c in log], max(copy.cursor(), (front[0], -1))
        is_restart = any(s.key[0] == copy.term for s in truth.served)
        was_left = copy.term - 1 in truth.left
        how = "restart" if is_restart else "move" if was_left else "takeover"
        self.counts[how] += 1
        if any(s.key[0] == copy.term and s.store != store for s in truth.served):
            raise Violation("two stores own one term")
        if copy.lacks_pieces() and any(s.key[0] > copy.term for s in truth.served):
            # Late: a successor has brought these files back. Whoever reads here is told that they are gone.
            return
        if contents != sorted(set(contents)) or list(place) != sorted(place):
            raise Violation("a log is out of order, or has something twice")
        for at, content in log:
            if truth.shown.setdefault(at, content) != content:
                raise Violation("two contents at one position")
            if at <= copy.cursor() and content not in truth.acked:
                raise Violation("a cursor passes what nobody consumed")
        if copy.cursor() >= front and copy.cursor() not in place and copy.files["cursor"]:
            raise Violation("a cursor beyond its log")
        if any(k <= key and (deleted, 0) > front for k, deleted in truth.deleted):
            raise Violation("what was deleted is back")
        if any(k < key and receipt > cursor for k, receipt in truth.receipts):
            raise Violation("a confirmed acknowledgment is undone")
        if any(k < key and at >= front and at not in place for at, k in truth.promised.items()):
            raise Violation(f"what was shown is lost by a {how}")
        for at, (content, k, _, _) in truth.confirmed.items():
            if k < key and at not in place and at not in truth.lost:
                if at < front and content not in truth.acked:
                    raise Violation("what nobody consumed is deleted")
                if at >= front and (self.sync or how != "takeover"):
                    raise Violation(f"confirmed appends are lost by a {how}")
                if at >= front:
                    self.lose(truth, at, place)
        for at in place:
            truth.promised.setdefault(at, key)
        truth.served.append(Served(key, store, place, front, cursor))

    def check_confirm(self, writer: Writer, at: At, content: int) -> None:
        truth, key, store = self.truths[writer.partition], writer.key, writer.disk.store
        self.counts["confirmed"] += 1
        if truth.shown.setdefault(at, content) != content:
            raise Violation("two contents at one position")
        truth.confirmed[at] = (content, key, self.now, store)
        for later in truth.served:
            if later.key > key and at not in later.log and at >= later.front and at not in truth.lost:
                if self.sync or later.key[0] == key[0]:
                    raise Violation("confirmed after somebody else took over without it")
                self.lose(truth, at, later.log)
        if (store, key[0]) == self.deciding(writer.partition):
            truth.last = self.now
            is_fresh = self.now < writer.home.process.ready_at + 10
            if self.sync and (is_fresh or self.aside.random() < 0.2):
                self.check_in_bucket(writer, at, content)

    def check_in_bucket(self, writer: Writer, at: At, content: int) -> None:
        """Look whether a reader of the journal finds what was confirmed just now."""
        task, answer = walk(writer.disk.store), None
        while True:
            try:
                answer = self.remote(task.send(answer))
            except StopIteration as end:
                state = end.value.states.get(writer.partition)
                break
        copy, partition = Copy(0), writer.partition
        for name, file in {} if state is None else state.files.items():
            read = writer.disk.read_away(partition, name, file.pieces)
            copy.files[name] = bytearray(read + bytes(file.tail or b""))
        if state is not None and state.term == writer.key[0] and (at, content) not in copy.log():
            raise Violation("confirmed before it was shipped")

    def check_receipt(self, writer: Writer, cursor: At) -> None:
        truth, key = self.truths[writer.partition], writer.key
        truth.receipts.append((key, cursor))
        if any(s.key > key and s.cursor < cursor for s in truth.served):
            raise Violation("an acknowledgment confirmed too late")

    def lose(self, truth: Truth, at: At, log: dict[At, int]) -> None:
        _, (term, _), when, _ = truth.confirmed[at]
        truth.lost.add(at)
        losses = truth.losses.setdefault(term, [])
        losses.append(when)
        self.counts["lost, as allowed"] += 1
        if any(other > at and other[0] < first_ledger(term + 1) for other in log):
            raise Violation("a hole among confirmed appends")
        if max(losses) - min(losses) > self.bound:
            raise Violation("more was lost than the lag bound allows")

    def check_set_aside(self, disk: Disk) -> None:
        """Look whether a store has a reason to serve nothing of its directory again."""
        is_sealed = any(
            unpack_journal(key, body).kind == SEALED
            for key, body in self.objects.items()
            if key.startswith(journal_prefix(disk.store))
        )
        if not (is_sealed or disk.is_of_backup):
            raise Violation("a store is set aside that has all that was shipped")

    def check_pieces(self) -> None:
        """Look whether pieces are left of what was deleted long ago."""
        for key in self.objects.keys() & set(self.old_pieces):  # others came late, until the next look
            partition, file = key.removeprefix(PIECES).split("/")[:2]
            ledger = ledger_of(file)
            if ledger is not None and ledger < self.fronts.get(partition, 0):
                raise Violation("pieces of what was deleted stay for ever")

    def check_salvage(self, disk: Disk) -> None:
        for partition, copy in disk.copies.items():
            truth = self.truths[partition]
            for at, (content, key, _, store) in truth.confirmed.items():
                if at in truth.lost and (store, key[0]) == (disk.store, copy.term):
                    self.counts["salvaged"] += 1
                    if copy.entries(at[0])[at[1] : at[1] + 1] != [content]:
                        raise Violation("nothing to salvage")

    def deciding(self, partition: str) -> tuple[str, int]:
        found = [e for e in self.decided if e.kind == "owner" and e.partition == partition]
        return (found[-1].store, found[-1].term) if found else ("", 0)

    def settled(self, since: float) -> bool:
        return all(
            truth.last > since
            and [self.deciding(p)[0]]
            == [s.disk.store for s in self.stores() if s.alive and p in s.life.serving]
            for p, truth in self.truths.items()
            if p in self.wanted()
        )

    # ---- faults and traffic
    def seems_served(self, partition: str, store: str) -> bool:
        """Return whether a controller takes a partition's process for one that serves."""
        return any(
            s.alive
            and not s.paused
            and s.node not in self.cut
            and s.disk.store == store
            and s.home.writer(partition) is not None
            for s in self.stores()
        )

    def start_later(self, node: Node) -> None:
        self.after(self.rng.uniform(1, 30), partial(self.wake_store, node))

    def rest(self) -> None:
        """Have a store that nothing lies in rest for a while."""
        if self.healed:
            return
        self.after(self.aside.expovariate(0.03), self.rest)
        owners = {self.deciding(partition)[0] for partition in self.truths}
        empty = [
            node
            for node in self.nodes
            if (store := node.process).alive
            and not (store.paused or store.disk.copies or store.disk.store in owners)
        ]
        if empty and sum(store.alive for store in self.stores()) > 1:
            node = self.aside.choice(empty)
            self.counts["rest"] += 1
            node.process.die()
            self.after(self.aside.uniform(5, 120), partial(self.wake_store, node))

    def wake_store(self, node: Node) -> None:
        """Begin a store that does not run; what was left of an earlier process may come late."""
        if not node.process.alive:
            if not self.healed and self.aside.random() < self.disk_faults:
                self.counts["disk"] += 1
                node.disk.failing_until = self.now + self.aside.uniform(0, 20)
            node.process = Store(self, node)
            if not self.healed and self.aside.random() < 0.2:  # it ends again while it starts
                self.after(self.aside.uniform(0, 5), partial(self.stop, node, "crash"))

    def stop(self, node: Node, how: str) -> None:
        if how == "crash" and self.healed:
            return
        node.process.die()
        old, node.backup = node.backup, node.disk.backup()
        for writer in list(node.writers.values()):
            if how != "crash" or self.aside.random() < 0.4:
                writer.die()
        if how == "backup" and old and self.sync:
            node.disk = old
        if how == "power":
            node.disk.power_cut()
        elif how == "lost":
            node.disk = Disk(self)
        self.start_later(node)

    def pause(self, process: Process) -> None:
        process.paused = True
        self.after(self.rng.uniform(5, 120), process.wake)

    def lose_all(self) -> None:
        for node in self.nodes:
            self.stop(node, "lost")
        for controller in self.controllers:
            controller.alive = False
        self.controllers = [Controller(self, None)]

    def traffic(self) -> None:
        rng, partition, what = self.rng, self.rng.choice(list(self.truths)), self.rng.random()
        self.after(rng.expovariate(self.traffic_rate), self.traffic)
        running = [s for s in self.stores() if s.alive and not s.paused]
        for store in running:
            store.after_step()
        serving = [w for w in self.writers(partition) if w.serving and not (w.paused or w.is_leaving)]
        if serving and self.aside.random() < self.offloads:
            store = self.aside.choice(serving).home.process
            store.begin(store.offload(partition))
        if what < self.checkpoints and running:
            store = rng.choice(running)
            store.begin(store.life.checkpoint())
        elif serving:
            writer = rng.choice(serving)
            if what < 0.65:
                writer.append()
            elif what < 0.85:
                writer.consume()
            elif what < 1 - self.moves or self.healed:
                writer.trim()
            elif others := [n for n in self.nodes if n is not writer.home]:
                source = writer.home.process
                source.begin(source.leave(partition, rng.choice(others)))

    def fault(self) -> None:
        if self.healed:
            return
        rng = self.rng
        kinds = (
            "crash crash crash power power lost backup pause pause cut cut outage writer writer controller "
            "controller-pause all"
        )
        self.after(rng.expovariate(self.fault_rate), self.fault)
        node, kind, controller = (
            rng.choice(self.nodes),
            rng.choice(kinds.split()),
            rng.choice(self.controllers),
        )
        self.counts[kind] += 1
        if kind in ("crash", "power", "lost", "backup"):
            self.stop(node, kind)
        elif kind == "writer":
            if running := list(node.writers.values()):
                writer = self.aside.choice(running)
                self.pause(writer) if self.aside.random() < 0.3 else writer.die()
        elif "pause" in kind:
            self.pause(node.process if kind == "pause" else controller)
        elif kind == "cut":
            self.cut.add(node)
            self.after(rng.uniform(5, 80), lambda: self.cut.discard(node))
        elif kind == "outage":
            self.outage = True
            self.after(rng.uniform(3, 40), lambda: setattr(self, "outage", False))
        elif kind == "controller":
            controller.alive = False
            self.controllers = [c for c in self.controllers if c.alive] + [Controller(self, None)]
        elif rng.random() < 0.3:
            self.lose_all()

    def heal(self) -> None:
        self.healed, self.outage, self.cut = True, False, set()
        self.loss = self.late = self.suspicion = 0
        for process in [*self.stores(), *self.controllers]:
            process.wake()
        for node in self.nodes:
            for writer in node.writers.values():
                writer.wake()

    def run(self, faults_until: float = 220, deadline: float = 700) -> Counter[str]:
        self.after(1, self.traffic)
        self.after(20, self.fault)
        self.after(20, self.rest)
        self.after(5, self.place)
        since, looked, refounded = faults_until, 0.0, False
        while True:
            self.now, _, call = heapq.heappop(self.queue)
            try:
                call()
            except PulsarException as error:
                raise Violation(str(error)) from error
            if not self.healed and self.now > faults_until:
                self.heal()
            elif self.healed and self.now > looked + 5:
                looked = self.now
                if self.now > since + deadline:
                    raise Violation("no progress with everything up")
                if self.now > since + 20 and self.settled(since + 10):
                    if not refounded:
                        since, refounded = self.now, True
                        self.old_pieces = [key for key in self.objects if key.startswith(PIECES)]
                        self.lose_all()
                    elif not self.fronts:
                        since = self.now
                        self.fronts = {p: self.truths[p].served[-1].front[0] for p in self.wanted()}
                    elif self.now > since + 70:
                        self.check_pieces()
                        return self.counts


def run_many(seeds: range, stop_at: int = 0) -> tuple[int, Counter[str], Counter[str]]:
    """Run histories; return how many ran, the violations, and what happened in all of them."""
    found: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    ran = 0
    for seed in seeds:
        ran += 1
        try:
            totals += World(seed).run()
        except Violation as violation:
            found[f"{violation} (seed {seed})"] += 1
            if found.total() == stop_at:
                break
    return ran, found, totals


if __name__ == "__main__":
    count, first = [int(a) for a in sys.argv[1:]] + [20_000, 0][len(sys.argv) - 1 :]
    ran, found, totals = run_many(range(first, first + count))
    print(ran, "histories", dict(found), dict(totals))
    sys.exit(1 if found else 0)
