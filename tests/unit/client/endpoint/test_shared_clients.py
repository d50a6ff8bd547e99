"""Handles that were unpickled share a client, for as long as it is of any use."""

from __future__ import annotations

import threading

from pulsar_ray.client.endpoint.lazy_handle import SharedClients
from pulsar_ray.client.options.client_options import ClientOptions

HERE, THERE = ClientOptions.from_arguments(data_dir="/here"), ClientOptions.from_arguments(data_dir="/there")


class Client:
    """One that somebody may look at, and that may be of no use any more."""

    def __init__(self, shared: SharedClients[Client] | None = None) -> None:
        self.serves = True
        self._shared = shared

    @property
    def is_usable(self) -> bool:
        if self._shared is not None:
            assert not self._shared._lock.locked(), "the look may run the application's callbacks"
        return self.serves


def test_there_is_one_for_each_cluster() -> None:
    shared: SharedClients[Client] = SharedClients()
    first = shared.find(HERE, "a", Client)
    assert shared.find(HERE, "a", Client) is first
    assert shared.find(HERE, "b", Client) is not first
    assert shared.find(THERE, "a", Client) is not first


def test_one_that_ended_is_replaced_once() -> None:
    shared: SharedClients[Client] = SharedClients()
    ended = shared.find(HERE, "a", lambda: Client(shared))
    ended.serves = False
    second = shared.find(HERE, "a", lambda: Client(shared))
    assert second is not ended
    assert shared.find(HERE, "a", Client) is second


def test_threads_that_come_at_once_get_the_same_one() -> None:
    shared: SharedClients[Client] = SharedClients()
    shared.find(HERE, "a", Client).serves = False
    found: list[Client] = []
    threads = [
        threading.Thread(target=lambda: found.append(shared.find(HERE, "a", Client))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(found)) == 1
    assert len(found) == 8
