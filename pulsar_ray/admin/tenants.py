"""`Admin.tenants`: what can be done to tenants."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import partial
from typing import Any

from pulsar_ray.admin.topic_calls import Broker
from pulsar_ray.client.options.checks import check_flag, check_text, checked_names
from pulsar_ray.errors import NotAllowedError, PulsarException, TopicNotFound


class Tenants:
    """Tenants of a broker: each has namespaces, and these have topics.

    Changes are durable when they return and may be repeated. A tenant that is not there is TopicNotFound with
    the nearest name. `public` and `pulsar` are there from the start and stay.
    """

    def __init__(self, broker: Broker) -> None:
        self._ask = partial(broker.ask, "call_part", "administration")

    def create(
        self, tenant: str, *, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Create a tenant. Raises NotAllowedError if it exists, InvalidConfiguration for a name like `a/b`.

        The admin roles may do everything with it by HTTP, where `authorization_enabled` is set. Clusters are
        kept and answered; nothing heeds them, for there is one.
        """
        info = _info(tenant, admin_roles, allowed_clusters)

        def is_there(refused: PulsarException) -> bool:
            return isinstance(refused, NotAllowedError) and self.get(tenant) == info

        self._ask("create_tenant", tenant, info, was_done=is_there)

    def update(
        self, tenant: str, *, admin_roles: Sequence[str] = (), allowed_clusters: Sequence[str] = ()
    ) -> None:
        """Replace a tenant's roles and clusters. Raises TopicNotFound."""
        self._ask("update_tenant", tenant, _info(tenant, admin_roles, allowed_clusters))

    def delete(self, tenant: str, force: bool = False) -> None:
        """Delete a tenant; by `force` with its namespaces, topics and messages.

        Raises TopicNotFound, and NotAllowedError while it has namespaces, unless forced, and for `public` and
        `pulsar`.
        """
        check_text("tenant", tenant)
        check_flag("force", force)
        self._ask("delete_tenant", tenant, force, was_done=lambda refused: isinstance(refused, TopicNotFound))

    def list(self) -> builtins.list[str]:
        """Return the names of all tenants, sorted."""
        return sorted(self._ask("tenants"))

    def get(self, tenant: str) -> dict[str, builtins.list[str]]:
        """Return a tenant's `admin_roles` and `allowed_clusters`. Raises TopicNotFound."""
        check_text("tenant", tenant)
        found: dict[str, builtins.list[str]] = self._ask("tenant", tenant)
        return found


def _info(tenant: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]) -> dict[str, Any]:
    check_text("tenant", tenant)
    return {
        "admin_roles": checked_names("admin_roles", admin_roles),
        "allowed_clusters": checked_names("allowed_clusters", allowed_clusters),
    }
