"""Deciding which idle partitions and dispatchers go to sleep. Pure.

A dispatcher without consumers leaves alone. A partition leaves once all of its dispatchers have, or together
with them: a consumer that stays attached then costs no process (ADR 0032).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_ray.broker.serving.sleeper import Idle


@dataclass(frozen=True)
class Group:
    """The running actors of one partition, by their names."""

    partition: str
    """The partition's own name, which is not its actor's."""
    actor: str | None
    """None if the partition itself does not run."""
    dispatchers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Departure:
    """Actors that are to leave in this order, the partition's own as the last."""

    partition: str
    dispatchers: tuple[str, ...]
    actor: str | None
    with_clients: bool
    """Whether clients that stay attached are no obstacle."""

    @property
    def size(self) -> int:
        """The number of processes that end."""
        return len(self.dispatchers) + (self.actor is not None)


class IdleActors:
    """Knows the actors that have reported to be idle.

    A report may be out of date: an actor that was used since refuses.
    """

    def __init__(self) -> None:
        self._idle: dict[str, Idle] = {}

    def reported(self, name: str, idle: Idle) -> None:
        """Take in an actor's report."""
        self._idle[name] = idle

    def forget(self, name: str) -> None:
        """An actor is gone, or not idle any more."""
        self._idle.pop(name, None)

    def departure(self, group: Group) -> Departure | None:
        """Return what may leave of a group by its reports; None: nothing."""
        return departure(group, self._idle)

    def to_make_room(
        self, groups: Sequence[Group], idle: Mapping[str, Idle], least_idle_ms: int, wanted: int
    ) -> list[Departure]:
        """Return departures that end at least so many processes, or all that can.

        The longest idle come first, those without clients before all others. `idle` is how idle each actor is
        now; less than `least_idle_ms` counts as being used.
        """
        unused = {name: each for name, each in idle.items() if each.idle_ms >= least_idle_ms}
        found: list[tuple[bool, int, Departure]] = []
        for group in groups:
            leaving = departure(group, unused)
            if leaving is not None:
                names = (*leaving.dispatchers, *([leaving.actor] if leaving.actor else []))
                has_clients = any(unused[name].clients for name in names)
                found.append((has_clients, -min(unused[name].idle_ms for name in names), leaving))
        chosen: list[Departure] = []
        for _, _, leaving in sorted(found, key=lambda each: each[:2]):
            if sum(each.size for each in chosen) >= wanted:
                break
            chosen.append(leaving)
        return chosen


def departure(group: Group, idle: Mapping[str, Idle]) -> Departure | None:
    """Return what may leave of a group, of which `idle` are not used."""
    names = [*group.dispatchers, *([group.actor] if group.actor else [])]
    if group.actor is not None and all(name in idle for name in names):
        attached = [idle[name] for name in names if idle[name].clients]
        if all(each.can_park for each in attached):
            return Departure(group.partition, group.dispatchers, group.actor, with_clients=bool(attached))
    alone = tuple(name for name in group.dispatchers if name in idle and not idle[name].clients)
    return Departure(group.partition, alone, None, with_clients=False) if alone else None
