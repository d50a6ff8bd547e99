"""Keeps one call of each client with parked consumers, until they may attach again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from pulsar_ray.broker.catalog.parked_consumers import Consumers, ParkedConsumers
from pulsar_ray.transport.actor_names import topic_of_actor


class ParkedClients:
    """Belongs to the controller; runs on its loop.

    `is_awake` tells whether nobody need wait for a partition any more. `elect` starts dispatchers
    that are to elect another active consumer.
    """

    def __init__(self, is_awake: Callable[[str], bool], elect: Callable[[list[str]], None]) -> None:
        self._is_awake = is_awake
        self._elect = elect
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._polls: dict[str, asyncio.Future[None]] = {}
        self._lives: dict[str, tuple[int, asyncio.Future[None]]] = {}
        self.consumers = ParkedConsumers()

    def count(self, partition: str) -> int:
        """Count the clients that wait with consumers for a partition that sleeps."""
        return sum(not waiter.done() for waiter in self._waiters.get(partition, ()))

    async def stay(self, client_id: str, number: int) -> None:
        """Wait until a client is gone, or stays by a call of another number.

        Its death is noticed by the death of this call's owner.
        """
        self._end_life(client_id)
        life: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lives[client_id] = number, life
        await life

    def _end_life(self, client_id: str) -> None:
        _, former = self._lives.pop(client_id, (0, None))
        if former is not None and not former.done():
            former.set_result(None)

    async def await_wake(
        self, client_id: str, parked: Mapping[str, Consumers], timeout_s: float
    ) -> list[str]:
        """Return those actors whose partitions are awake, or are gone; waits until there is one.

        Empty after the timeout, and once the same client asks anew. Asking again does no harm, and misses
        nothing. The client stays (`stay`) from before its first call until it is gone (`died`).
        """
        self._end_poll(client_id)
        self.consumers.waits(client_id, parked)
        partitions = {address: topic_of_actor(address) for address in parked}
        if not (awake := self._awake(partitions)):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._polls[client_id] = waiter
            for partition in partitions.values():
                self._waiters.setdefault(partition, set()).add(waiter)
            self._elect(self.consumers.to_elect(parked))
            try:
                await asyncio.wait((waiter,), timeout=timeout_s)
            finally:
                self._forget(client_id, waiter, partitions.values())
            awake = self._awake(partitions)
        else:
            self.consumers.waits_no_more(client_id)
        return awake

    def _end_poll(self, client_id: str) -> None:
        former = self._polls.pop(client_id, None)
        if former is not None and not former.done():
            former.set_result(None)

    def _forget(self, client_id: str, waiter: asyncio.Future[None], partitions: Iterable[str]) -> None:
        if self._polls.get(client_id) is waiter:
            del self._polls[client_id]
            self.consumers.waits_no_more(client_id)
        for partition in partitions:
            waiting = self._waiters.get(partition)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._waiters[partition]

    def _awake(self, partitions: dict[str, str]) -> list[str]:
        return [address for address, partition in partitions.items() if self._is_awake(partition)]

    def wake(self, partition: str) -> None:
        """Answer those that wait for a partition."""
        for waiter in self._waiters.get(partition, ()):
            if not waiter.done():
                waiter.set_result(None)

    def consumer_left(self, dispatcher: str, incarnation: int, *, calls_election: bool) -> None:
        """Take in that a consumer was closed whose dispatcher sleeps."""
        self.consumers.left(dispatcher, incarnation, calls_election=calls_election)
        self._elect(self.consumers.to_elect([dispatcher]))

    def died(self, client_id: str, number: int) -> list[tuple[str, int, bool]]:
        """Return the arguments of `consumer_left` for each consumer that a client had parked.

        Its process has died, or needs the client no more; it stayed by the call of this number.
        """
        if self._lives.get(client_id, (None,))[0] != number:
            return []
        self._end_life(client_id)
        self._end_poll(client_id)
        return self.consumers.died(client_id)
