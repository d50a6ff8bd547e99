"""The last words of a process: once, by its own links, and never for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from pulsar_ray.client.endpoint import last_words
from pulsar_ray.client.endpoint.last_words import LastWords

SIGTERM_PROGRAM = """
import atexit, signal, sys, time
from pulsar_ray.client.endpoint.last_words import exit_on_sigterm
if sys.argv[1] != "none":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("own"))
exit_on_sigterm()
atexit.register(lambda: print("atexit", flush=True))
print("ready", flush=True)
time.sleep(60)
"""


class Link:
    def __init__(self, *, answers: bool = True, attached: bool = True) -> None:
        self.is_attached = attached
        self.has_left = False
        self.left = 0
        self._answers = answers

    def leave(self) -> None:
        self.left += 1
        self.has_left = self._answers


class Links:
    """Links that may be referred to weakly."""

    def __init__(self, *links: Link) -> None:
        self.links = links

    def __iter__(self) -> Iterator[Link]:
        return iter(self.links)


def test_all_attached_links_leave_once() -> None:
    words = LastWords()
    links = [Links(Link(), Link(attached=False)), Links(Link())]
    for each in links:
        words.know(each)
        words.know(each)
    words.know(Links(Link()))
    words.speak()
    words.speak()
    assert [[link.left for link in each] for each in links] == [[1, 0], [1]]


def test_an_actor_that_does_not_answer_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "LAST_WORDS_S", 0.05)
    words = LastWords()
    links = Links(Link(answers=False), Link())
    words.know(links)
    words.speak()
    assert [link.left for link in links] == [1, 1]


def test_an_io_thread_that_stands_still_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_words, "LAST_WORDS_S", 0.05)
    goes_on = threading.Event()
    words = LastWords()

    class Stuck(Link):
        def leave(self) -> None:
            goes_on.wait()

    links = Links(Stuck())
    words.know(links)
    began = time.monotonic()
    words.speak()
    goes_on.set()
    assert time.monotonic() - began >= 0.05


def test_a_forked_child_is_silent_about_links_of_its_parent() -> None:
    words = LastWords()
    links = Links(Link())
    words.know(links)
    child = os.fork()
    if child == 0:
        words.speak()
        os._exit(links.links[0].left)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    words.speak()
    assert links.links[0].left == 1


@pytest.mark.parametrize("handler", ["none", "own"])
def test_sigterm_becomes_an_exit_unless_the_program_has_a_handler(handler: str) -> None:
    command = [sys.executable, "-c", SIGTERM_PROGRAM, handler]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.terminate()
        said, error = program.communicate(timeout=30)
    assert said == "atexit\n"
    assert program.returncode == (signal.SIGTERM if handler == "none" else 1)
    assert error == ("" if handler == "none" else "own\n")
