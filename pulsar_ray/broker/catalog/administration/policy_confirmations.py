"""Which actors have been told which policies."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_ray.model.policies import PolicyUpdate


class PolicyConfirmations:
    """The version that each running actor has confirmed, by the actor's name.

    Nothing is known of actors after a restart of the controller: all of them are told again.
    """

    def __init__(self) -> None:
        self._confirmed: dict[str, int] = {}

    def created(self, name: str, update: PolicyUpdate) -> None:
        """An actor was created with these policies."""
        self._confirmed[name] = update.version

    def confirmed(self, name: str, update: PolicyUpdate) -> None:
        """An actor has confirmed an update; a late answer undoes no later one."""
        self._confirmed[name] = max(self._confirmed.get(name, 0), update.version)

    def is_known(self, name: str) -> bool:
        """Whether an actor has confirmed any update since this controller started."""
        return name in self._confirmed

    def lacks(self, name: str, update: PolicyUpdate) -> bool:
        """Whether an actor has not confirmed this update, or a later one."""
        return self._confirmed.get(name, 0) < update.version

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget actors that are gone."""
        kept = set(names)
        self._confirmed = {name: version for name, version in self._confirmed.items() if name in kept}
