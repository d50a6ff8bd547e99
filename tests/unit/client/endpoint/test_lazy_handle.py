from __future__ import annotations

import threading

import pytest

from pulsar_ray.client.endpoint.lazy_handle import LazyHandle
from pulsar_ray.errors import ConsumerBusy


class Handle(LazyHandle):
    name: str

    def __init__(self, value: int) -> None:
        self.value = value


def unpickled(value: int, opened: list[int], failures: int = 0) -> Handle:
    handle = Handle.__new__(Handle)

    def open_now() -> None:
        opened.append(value)
        if len(opened) <= failures:
            raise ConsumerBusy("busy")
        Handle.__init__(handle, value)

    handle.open_lazily(open_now, name="known")
    return handle


def test_it_opens_at_the_first_look_and_only_once() -> None:
    opened: list[int] = []
    handle = unpickled(7, opened)
    assert handle.name == "known"
    assert opened == []
    assert handle.value == 7
    assert handle.value == 7
    assert opened == [7]


def test_what_it_never_gets_is_missing() -> None:
    opened: list[int] = []
    handle = unpickled(7, opened)
    with pytest.raises(AttributeError, match="unheard_of"):
        _ = handle.unheard_of  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        _ = Handle(1).unheard_of  # type: ignore[attr-defined]
    assert opened == [7]


def test_once_open_it_is_of_its_class() -> None:
    handle = unpickled(7, [])
    assert isinstance(handle, Handle)
    assert handle.value == 7
    assert type(handle) is Handle


def test_looking_for_protocols_opens_nothing() -> None:
    opened: list[int] = []
    assert not hasattr(unpickled(7, opened), "__array__")
    assert opened == []


def test_an_error_comes_with_each_use_until_it_opens() -> None:
    opened: list[int] = []
    handle = unpickled(7, opened, failures=2)
    for _ in range(2):
        with pytest.raises(ConsumerBusy):
            _ = handle.value
    assert handle.value == 7
    assert len(opened) == 3


def test_threads_open_it_together() -> None:
    opened: list[int] = []
    handle = unpickled(7, opened)
    threads = [threading.Thread(target=lambda: handle.value) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [7]
