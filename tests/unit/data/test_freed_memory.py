from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import resource, sys, threading
from pulsar_ray.data.reading.freed_memory import keep_freed_memory

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

if sys.argv[1] == "keep":
    keep_freed_memory()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def _faults(mode: str) -> int:
    found = subprocess.run([sys.executable, "-c", _FAULTS, mode], check=True, capture_output=True, text=True)
    return int(found.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc's allocator")
def test_memory_that_is_freed_and_wanted_again_is_not_asked_of_the_kernel() -> None:
    """A round takes 68 MB, which are 16,600 pages."""
    assert _faults("keep") < 1000
    assert _faults("leave") > 10_000, "the test sees nothing"
