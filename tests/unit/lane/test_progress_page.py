"""Counts of one process that another one reads, also after the first was killed."""

from __future__ import annotations

import os
import subprocess
import sys

from pulsar_ray.lane import progress_page
from pulsar_ray.lane.progress_page import CounterView, new_counter

WRITER = """
import os, signal, sys
from pulsar_ray.lane.progress_page import new_counter
counter = new_counter()
pid, descriptor, at, nonce = counter.name
print(pid, descriptor, at, nonce.hex(), flush=True)
sys.stdin.readline()
counter.write(41)
counter.write(42)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_last_count_is_there_after_its_process_was_killed() -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    pid, descriptor, at, nonce = writer.stdout.readline().split()
    view = CounterView.open((int(pid), int(descriptor), int(at), bytes.fromhex(nonce)))
    assert view is not None
    assert view.read() == 0
    writer.stdin.write("\n")
    writer.communicate()
    assert view.read() == 42


def test_a_name_that_leads_elsewhere_opens_nothing() -> None:
    counter = new_counter()
    assert counter is not None
    pid, descriptor, at, nonce = counter.name
    with open(os.devnull) as other:
        assert CounterView.open((pid, other.fileno(), at, nonce)) is None
    assert CounterView.open((pid, descriptor, at, b"x" * len(nonce))) is None
    assert CounterView.open((pid, descriptor, 4096, nonce)) is None
    assert CounterView.open((pid, 1 << 30, at, nonce)) is None


def test_counters_are_many_apart_and_used_again() -> None:
    counters = [new_counter() for _ in range(1200)]
    for number, counter in enumerate(counters):
        assert counter is not None
        counter.write(number)
    views = [CounterView.open(counter.name) for counter in counters if counter is not None]
    assert [view.read() for view in views if view is not None] == list(range(1200))
    pages = len(progress_page._pages)
    for counter in counters:
        assert counter is not None
        counter.release()
    again = [new_counter() for _ in range(1200)]
    assert len(progress_page._pages) == pages
    for counter in again:
        assert counter is not None
        assert CounterView.open(counter.name).read() == 0  # type: ignore[union-attr]
        counter.release()
