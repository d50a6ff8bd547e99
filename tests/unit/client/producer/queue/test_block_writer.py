"""The write role: one thread writes, and no block stays behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pulsar_ray.client.producer.blocks.unconfirmed_blocks import UnconfirmedBlock
from pulsar_ray.client.producer.queue.block_writer import BlockWriter

DEADLINE_S = 20


class Source:
    """A list of blocks."""

    def __init__(self, *blocks: str) -> None:
        self.blocks = list(blocks)
        self.before_look: Callable[[], None] = lambda: None

    def next_block(self) -> tuple[UnconfirmedBlock, Any] | None:
        if not self.blocks:
            return None
        buffers = [self.blocks.pop(0).encode()]
        return UnconfirmedBlock(0, 1, 1, buffers, 1, 0.0, lambda *_: None), "carrier"

    def has_work(self) -> bool:
        self.before_look()
        return bool(self.blocks)


class Link:
    """Keeps the last byte of each packet."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.before_send: Callable[[], None] = lambda: None
        self.is_lost = False

    def send(self, buffers: list[Any], only_on: Any = None, *, waits: bool = False) -> bool:
        assert only_on == "carrier"
        self.before_send()
        if not self.is_lost:
            self.sent.append(b"".join(buffers)[-1:].decode())
        return not self.is_lost


def writer_of(source: Source) -> tuple[Any, BlockWriter]:
    link: Any = Link()
    return link, BlockWriter(link, 7, source)


def test_it_writes_until_nothing_is_left() -> None:
    link, writer = writer_of(Source("a", "b", "c"))
    writer.write_if_any()
    assert link.sent == ["a", "b", "c"]


def test_a_thread_that_finds_another_one_writing_does_not_wait() -> None:
    source = Source("a")
    link, writer = writer_of(source)
    is_writing, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        link.before_send = lambda: None
        is_writing.set()
        assert may_go_on.wait(DEADLINE_S)

    link.before_send = hold
    thread = threading.Thread(target=writer.write)
    thread.start()
    assert is_writing.wait(DEADLINE_S)
    source.blocks.append("b")
    writer.write()
    assert link.sent == []
    may_go_on.set()
    thread.join(DEADLINE_S)
    assert link.sent == ["a", "b"]


def test_work_added_just_before_the_role_is_given_back_is_written_by_its_holder() -> None:
    source = Source("a")
    link, writer = writer_of(source)

    def add_as_another_thread() -> None:
        # The holder has found nothing more and gives the role back: whoever added found it taken.
        source.before_look = lambda: None
        source.blocks.append("b")

    source.before_look = add_as_another_thread
    writer.write()
    assert link.sent == ["a", "b"]


def test_it_stops_where_the_carrier_is_lost() -> None:
    source = Source("a", "b")
    link, writer = writer_of(source)
    link.is_lost = True
    writer.write()
    assert source.blocks == ["b"]


def test_a_forked_child_can_write_although_a_thread_of_the_parent_was_writing() -> None:
    link, writer = writer_of(Source("a"))
    writer._role.acquire()
    writer.forked()
    writer.write()
    assert link.sent == ["a"]
