"""Lets clients on Ray that show credentials do what their role may."""

from __future__ import annotations

from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthorizationError
from pulsar_ray.security.authentication import Authentication, Credentials
from pulsar_ray.security.authorization import Grants, Resource, Right, why_not


class Entrance:
    """Keys are read when somebody comes for the first time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._authentication: Authentication | None = None
        self._superusers = settings.superusers()

    def role_of(self, shown: Credentials, now_s: float) -> str:
        """Return the role of whoever shows this. Raises as `Authentication`."""
        if self._authentication is None:
            self._authentication = Authentication(self._settings)
        return self._authentication.who(shown, now_s).role

    def check(self, role: str, right: Right, resource: Resource, grants: Grants) -> None:
        """Raise AuthorizationError unless the role has this right."""
        if not self._settings.authorization_enabled:
            return
        if reason := why_not(role, right, resource, grants, self._superusers):
            raise AuthorizationError(reason)
