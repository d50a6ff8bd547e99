"""Decides who somebody is, and what their role may, also on Ray."""

from __future__ import annotations

from functools import cached_property

from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthorizationError
from pulsar_ray.security.authentication import Authentication
from pulsar_ray.security.authorization import Grants, Resource, Right, why_not


class Entrance:
    """Knows the settings; the caller asks for grants where they are needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.decides = settings.authorization_enabled
        """Whether roles need rights at all."""
        self._superusers = settings.superusers()

    @cached_property
    def authentication(self) -> Authentication:
        """The judge of credentials, made when somebody first asks; raises as it does."""
        return Authentication(self._settings)

    def is_open_to(self, role: str, right: Right) -> bool:
        """Return whether a role has a right without any grant."""
        return not self.decides or role in self._superusers or right is Right.KNOWN

    def check(self, role: str, right: Right, resource: Resource, grants: Grants) -> None:
        """Raise AuthorizationError unless the role has this right, by the grants if it needs any."""
        if not self.is_open_to(role, right):
            reason = why_not(role, right, resource, grants, self._superusers)
            if reason:
                raise AuthorizationError(reason)
