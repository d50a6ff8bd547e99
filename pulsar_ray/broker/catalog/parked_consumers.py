"""Knows which consumers wait for sleeping dispatchers, and which have left. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pulsar_ray.transport.actor_names import parse_dispatcher_name

Consumers = Sequence[tuple[int, bool]]
"""(incarnation, whether its end calls for an election) of each."""
MOST_LEFT = 10_000
"""Consumers that have left and are remembered; for older ones their dispatchers wait again."""


class ParkedConsumers:
    """Dispatchers are known by their addresses, client processes by the ids of their clients.

    A dispatcher that starts waits for the consumers that its cursor log knows, but for those that have left.
    All of it is memory alone: what a controller forgets when it dies costs a wait.
    """

    def __init__(self) -> None:
        self._parked: dict[str, Mapping[str, Consumers]] = {}
        """The consumers that each living client named last."""
        self._waiting: set[str] = set()
        self._left: dict[str, dict[int, bool]] = {}
        self._left_count = 0

    def waits(self, client_id: str, consumers: Mapping[str, Consumers]) -> None:
        """Take in the dispatchers that a client waits for from now on.

        With its consumers there.
        """
        self._parked[client_id] = consumers
        self._waiting.add(client_id)

    def waits_no_more(self, client_id: str) -> None:
        """A client is given an answer.

        Its consumers are remembered: it may die before it has attached them, or waits again.
        """
        self._waiting.discard(client_id)

    def at(self, partition: str) -> list[str]:
        """Name the consumers of clients that wait for a partition which sleeps: by their subscriptions.

        Not those that have left since their client began to wait.
        """
        names: list[str] = []
        for client_id in sorted(self._waiting):
            for address, consumers in self._parked[client_id].items():
                topic, subscription, is_durable = parse_dispatcher_name(address) or ("", "", False)
                left = self._left.get(address, {})
                staying = [incarnation for incarnation, _ in consumers if incarnation not in left]
                if topic == partition and (staying or not consumers):
                    count = max(1, len(staying))  # readers are not awaited, and so not listed
                    names += [f"a consumer of {subscription!r}" if is_durable else "a reader"] * count
        return names

    def died(self, client_id: str) -> list[tuple[str, int, bool]]:
        """Return the consumers of a client that is gone.

        Of each (dispatcher, incarnation, whether its end calls for an election).
        """
        self._waiting.discard(client_id)
        consumers = self._parked.pop(client_id, {})
        return [(address, *each) for address, of_client in consumers.items() for each in of_client]

    def left(self, address: str, incarnation: int, *, calls_election: bool) -> None:
        """A consumer was closed while its dispatcher slept; may be repeated."""
        of_dispatcher = self._left.setdefault(address, {})
        self._left_count += incarnation not in of_dispatcher
        of_dispatcher[incarnation] = calls_election
        while self._left_count > MOST_LEFT:
            self.take_left(next(iter(self._left)))

    def take_left(self, address: str) -> tuple[int, ...]:
        """Return once the consumers that have left a dispatcher."""
        left = tuple(self._left.pop(address, ()))
        self._left_count -= len(left)
        return left

    def to_elect(self, addresses: Iterable[str]) -> list[str]:
        """Return those dispatchers that are to elect another active consumer of those that wait."""
        return [address for address in addresses if address in self._left and self._must_elect(address)]

    def _must_elect(self, address: str) -> bool:
        left = self._left[address]
        waiting = {
            incarnation
            for client_id in self._waiting
            for incarnation, _ in self._parked[client_id].get(address, ())
        }
        return any(left.values()) and not left.keys() >= waiting
