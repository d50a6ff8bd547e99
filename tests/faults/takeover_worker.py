"""One owner process of the takeover test: on "open" it takes the log over, then writes until it is fenced.

It prints `opened <entries>` with everything it found, `receipt <entry>` for each entry it confirms, and
`fenced`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path

from pulsar_ray.errors import Fenced
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.managed_ledger.log.commit import Commit
from pulsar_ray.managed_ledger.log.managed_ledger import ManagedLedger
from pulsar_ray.testing.faulty_disk import FaultyDisk
from tests.stored_blocks import block, open_log, settings

LONGEST_DELAY_S = 0.003


class GrantingLock:
    """A lock that is granted while somebody holds it."""

    def release(self) -> None:
        pass


def check_then_write(commit: Commit) -> None:
    """The deliberately wrong writer: it checks its ownership before it writes."""
    commit.files.owner.check()
    run_without_check(commit)


def run_without_check(commit: Commit) -> None:
    files = commit.files

    class Unchecked:
        path = files.owner.path

        def check(self) -> None:
            pass

    commit.files = files._replace(owner=Unchecked())  # type: ignore[arg-type]
    commit.run()


def found(log: ManagedLedger) -> list[tuple[int, int]]:
    """(incarnation, entry_seq) of every entry, in order."""
    entries = []
    for segment in log.segments():
        with SegmentReader(segment.path) as reader:
            for offset, frame in reader.read_frames(4096, segment.end_offset, 1 << 40):
                at = offset + frame.header_length
                for span in frame.blocks:
                    header = reader.read_block_header(at, span.length)
                    entries.append((header.incarnation, header.entry_seq))
                    at += span.length
    return entries


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def own(directory: Path, incarnation: int, rng: random.Random, is_wrong: bool) -> None:
    """Take the log over and write to it until somebody else does."""
    disk = FaultyDisk()
    config = settings(managed_ledger_max_entries_per_ledger=15, index_checkpoint_entries=7)
    log = open_log(directory, config=config, disk=disk, acquire_lock=lambda _path: GrantingLock())
    say("opened", json.dumps(found(log)))
    never = threading.Event()

    def delay(call: str) -> None:
        # Late writes: the former owner is anywhere between deciding and answering when it is taken over.
        if call in ("writev", "fdatasync", "open", "rename") and rng.random() < 0.5:
            never.wait(rng.random() * LONGEST_DELAY_S)

    disk.before = delay
    seq = 0
    while True:
        count = rng.randint(1, 3)
        commit = log.begin_append([block(seq + i, incarnation=incarnation) for i in range(count)], 1000)
        try:
            if is_wrong:
                check_then_write(commit)
            else:
                commit.run()
        except Fenced:
            say("fenced")
            return
        except OSError:
            # The successor has taken the name of our next file.
            log.fail_append(commit)
            continue
        log.finish_append(commit)
        for i in range(count):
            say("receipt", incarnation, seq + i)
        seq += count


def main() -> None:
    seed, is_wrong = int(sys.argv[1]), sys.argv[2] == "wrong"
    rng = random.Random(seed)
    for line in sys.stdin:
        directory, incarnation = line.split()
        own(Path(directory), int(incarnation), rng, is_wrong)


if __name__ == "__main__":
    main()
