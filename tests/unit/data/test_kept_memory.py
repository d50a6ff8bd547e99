from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys, threading
from pulsar_ray.data.reading.kept_memory import KeptMemory, _own_bytes

def faults_of(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        pieces = [b"x" * 1_000_000 for _ in range(34)]
        b"".join(pieces)
        del pieces
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def work():
    faults_of(5)
    print(faults_of(10))
    pieces = [b"x" * 1_000_000 for _ in range(400)]

memory = KeptMemory() if sys.argv[1] == "keep" else None
thread = threading.Thread(target=work)
thread.start()
thread.join()
before = _own_bytes()
if memory is not None:
    memory.trim()
print(before >> 20, _own_bytes() >> 20)
"""


def _found(mode: str) -> list[int]:
    ran = subprocess.run([sys.executable, "-c", _FAULTS, mode], check=True, capture_output=True, text=True)
    return [int(number) for number in ran.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_memory_that_is_wanted_again_is_kept_unless_it_is_much() -> None:
    """A round takes 68 MB, which are 16,600 pages."""
    faults, before_trim, after_trim = _found("keep")
    assert faults < 1000
    assert before_trim > 192, "400 MB were freed, and most of them kept"
    assert after_trim < before_trim - 100
    faults, *_ = _found("leave")
    assert faults > 10_000, "the test sees nothing"
