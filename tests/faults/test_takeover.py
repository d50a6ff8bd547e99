"""Takeovers of a log whose former owner lives and writes on: its successor must find all it confirmed.

The lock is a stub that is granted while held, so that only the epoch protects the log. A writer that checks
its ownership before the write instead of after it must be caught by the same harness.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.takeover_worker import GrantingLock
from tests.stored_blocks import open_log

DEADLINE_S = 60.0
TAKEOVERS_PER_LOG = 12
SECONDS = 7.0
FEWEST_TAKEOVERS = 24

Entry = tuple[int, int]


class Worker:
    """An owner process and the lines it prints."""

    def __init__(self, seed: int, kind: str) -> None:
        root = Path(__file__).parents[2]
        command = [sys.executable, "-m", "tests.faults.takeover_worker", str(seed), kind]
        self.process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: queue.Queue[list[str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.split(maxsplit=1))

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def next(self) -> tuple[str, str]:
        word, *rest = self.lines.get(timeout=DEADLINE_S)
        return word, rest[0].strip() if rest else ""

    def end(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


@dataclass
class Outcome:
    takeovers: int = 0
    receipts: int = 0
    late_receipts: int = 0
    logs_with_late_bytes: int = 0
    lost: list[Entry] = field(default_factory=list)


@contextmanager
def workers(seed: int, kind: str) -> Iterator[list[Worker]]:
    both = [Worker(seed, kind), Worker(seed + 1, kind)]
    try:
        yield both
    finally:
        for worker in both:
            worker.end()


def take_over(successor: Worker, directory: Path, incarnation: int) -> list[Entry]:
    """Let a worker open the log; returns the entries it found."""
    successor.say(f"{directory} {incarnation}")
    word, rest = successor.next()
    assert word == "opened", (word, rest)
    return [(owner, seq) for owner, seq in json.loads(rest)]


def receipts_until(worker: Worker, count: int) -> list[Entry]:
    """The next receipts of an owner."""
    given: list[Entry] = []
    while len(given) < count:
        word, rest = worker.next()
        assert word == "receipt", (word, rest)
        incarnation, seq = rest.split()
        given.append((int(incarnation), int(seq)))
    return given


def receipts_until_fenced(worker: Worker) -> list[Entry]:
    given: list[Entry] = []
    while True:
        word, rest = worker.next()
        if word == "fenced":
            return given
        incarnation, seq = rest.split()
        given.append((int(incarnation), int(seq)))


def run_one_log(pair: list[Worker], directory: Path, rng: random.Random, outcome: Outcome) -> None:
    """Pass one log to and fro between two processes, the former owner always alive."""
    seen: list[Entry] = take_over(pair[0], directory, 1)
    assert seen == []
    given: list[Entry] = []
    for takeover in range(TAKEOVERS_PER_LOG):
        former, successor = pair[takeover % 2], pair[(takeover + 1) % 2]
        given += receipts_until(former, rng.randint(0, 12))
        is_stopped = rng.random() < 0.5
        if is_stopped:
            former.process.send_signal(signal.SIGSTOP)
        now_seen = take_over(successor, directory, takeover + 2)
        if is_stopped:
            former.process.send_signal(signal.SIGCONT)
        late = receipts_until_fenced(former)
        given += late
        outcome.takeovers += 1
        outcome.late_receipts += len(late)
        assert now_seen[: len(seen)] == seen, "what one owner saw, its successors see"
        seen = now_seen
        outcome.lost += sorted(set(given) - set(seen))
        assert len(set(seen)) == len(seen), "nothing is stored twice"
        # What was lost is counted once; the log goes on with what its owner has.
        given = [entry for entry in given if entry in set(seen)]
    outcome.receipts += len(given)
    last = pair[TAKEOVERS_PER_LOG % 2]
    final = open_log(directory, acquire_lock=lambda _path: GrantingLock())
    outcome.receipts += len(receipts_until_fenced(last))
    outcome.logs_with_late_bytes += any(
        segment.path.stat().st_size > segment.end_offset for segment in final.segments()
    )
    assert final.corruptions == []
    final.close()


def run(tmp_path: Path, kind: str, seed: int, *, until_lost: bool) -> Outcome:
    print("seed", seed)
    rng = random.Random(seed)
    outcome = Outcome()
    end = time.monotonic() + SECONDS
    with workers(seed, kind) as pair:
        for number in itertools.count():
            run_one_log(pair, tmp_path / str(number), rng, outcome)
            if until_lost and outcome.lost:
                break
            if outcome.takeovers >= FEWEST_TAKEOVERS and time.monotonic() > end:
                break
    print(outcome)
    return outcome


@pytest.mark.parametrize("seed", [1, 20_000])
def test_every_receipt_is_found_by_the_successor(tmp_path: Path, seed: int) -> None:
    outcome = run(tmp_path, "right", seed, until_lost=False)
    assert outcome.lost == []
    assert outcome.receipts > outcome.takeovers
    assert outcome.logs_with_late_bytes, "no former owner wrote late: the test shows nothing"


def test_a_writer_that_checks_before_the_write_is_caught(tmp_path: Path) -> None:
    outcome = run(tmp_path, "wrong", 3, until_lost=True)
    assert outcome.lost
