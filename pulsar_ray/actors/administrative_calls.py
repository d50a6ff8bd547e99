"""Calls of administrators to the controller: tenants, policies, stores, schemas."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Any

from pulsar_ray.actors.control_plane import ControlPlane
from pulsar_ray.actors.stores.stores import Stores
from pulsar_ray.broker.catalog.administration.administration import Administration
from pulsar_ray.broker.catalog.catalog import Subscriptions
from pulsar_ray.broker.catalog.schemas.schema_registry import SchemaRegistry
from pulsar_ray.broker.serving.logs.line_limits import audit
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authentication import Credentials
from pulsar_ray.security.authorization import Grants, Resource, Right
from pulsar_ray.security.entrance import Entrance


class AdministrativeCalls:
    """Answers administrators once the control plane serves."""

    _entrance: Entrance
    _stores: Stores

    async def _serving(self) -> ControlPlane:
        """Return the control plane once it serves.

        Raises what is wrong with the data directory, typed.
        """
        raise NotImplementedError

    # --- tenants, namespaces, policies: see Administration ----------------------------------------

    async def tenants(self) -> list[str]:
        """The tenants' names, sorted."""
        return await (await self._administering()).tenants()

    async def tenant(self, name: str) -> dict[str, list[str]]:
        """The `admin_roles` and `allowed_clusters` of a tenant."""
        return await (await self._administering()).tenant(name)

    async def create_tenant(self, name: str, info: dict[str, list[str]]) -> None:
        """Create a tenant."""
        await (await self._administering()).create_tenant(name, info)

    async def update_tenant(self, name: str, info: dict[str, list[str]]) -> None:
        """Change the fields of a tenant that are given."""
        await (await self._administering()).update_tenant(name, info)

    async def delete_tenant(self, name: str, force: bool) -> None:
        """Delete a tenant, with `force` with its namespaces."""
        await (await self._administering()).delete_tenant(name, force)

    async def namespaces(self, tenant: str) -> list[str]:
        """The namespaces of a tenant as tenant/namespace, sorted."""
        return await (await self._administering()).namespaces(tenant)

    async def create_namespace(
        self, namespace: str, policies: dict[str, dict[str, Any]] | None = None
    ) -> None:
        """Create a namespace with policies."""
        await (await self._administering()).create_namespace(namespace, policies)

    async def delete_namespace(self, namespace: str, force: bool) -> None:
        """Delete a namespace, with `force` with its topics."""
        await (await self._administering()).delete_namespace(namespace, force)

    async def abandon_change_logs(self, namespace: str) -> list[str]:
        """Give up those change logs of a namespace whose stores are lost for good."""
        return await (await self._administering()).abandon_change_logs(namespace)

    async def policies(self, subject: str, name: str = "") -> list[dict[str, Any]]:
        """The fields of each AppliedPolicy of a namespace or topic; all, or one."""
        found = await (await self._administering()).policies(subject, name)
        return [dataclasses.asdict(policy) for policy in found]

    async def set_policy(self, subject: str, name: str, value: dict[str, Any]) -> None:
        """Give a namespace or topic a policy."""
        await (await self._administering()).set_policy(subject, name, value)

    async def remove_policy(self, subject: str, name: str) -> None:
        """Take a policy of a namespace or topic back."""
        await (await self._administering()).remove_policy(subject, name)

    async def permissions(self, subject: str) -> dict[str, dict[str, list[str]]]:
        """The roles and subscriptions with permissions of a namespace or topic."""
        return await (await self._administering()).permissions(subject)

    async def authorize(self, authorization: str, right: str, subject: str, subscription: str) -> None:
        """Check the credentials of a client on Ray, and the right that it needs.

        Raises AuthenticationError and AuthorizationError, and what is wrong with the settings for both.
        """
        authentication = await asyncio.to_thread(lambda: self._entrance.authentication)
        role = authentication.who(Credentials.of_program(authorization), time.time()).role
        if not self._entrance.is_open_to(role, Right(right)):
            grants = Grants.of(await self.grants(subject))
            self._entrance.check(role, Right(right), Resource(subject, subscription), grants)

    async def grants(self, subject: str) -> dict[str, Any]:
        """All grants that concern a topic, a namespace or a tenant."""
        return await (await self._administering()).grants(subject)

    async def grant_permission(self, subject: str, role: str, actions: list[str]) -> None:
        """Give a role actions on a namespace or topic."""
        await (await self._administering()).grant_permission(subject, role, actions)
        audit("%r may %s on %s", role, ", ".join(actions), subject)

    async def revoke_permission(self, subject: str, role: str) -> None:
        """Take a role's actions on a namespace or topic."""
        await (await self._administering()).revoke_permission(subject, role)
        audit("%r has no permissions on %s any more", role, subject)

    async def grant_subscription_permission(
        self, namespace: str, subscription: str, roles: list[str]
    ) -> None:
        """Let these roles alone consume a subscription."""
        await (await self._administering()).grant_subscription_permission(namespace, subscription, roles)
        audit("%r may consume %s in %s", roles, subscription, namespace)

    async def revoke_subscription_permission(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role from those of a subscription."""
        await (await self._administering()).revoke_subscription_permission(namespace, subscription, role)
        audit("%r is none of the roles of %s in %s", role, subscription, namespace)

    async def heartbeats(self) -> list[tuple[str, str, str]]:
        """Return (store id, host, heartbeat topic) of every store that is there; makes missing topics."""
        topics = (await self._serving()).topics
        stores = list(self._stores.known.items())
        await self._stores.reserve_numbers(len(stores))
        found = [(store_id, store["host"], topics.heartbeat(store_id).full) for store_id, store in stores]
        await topics.catalog.settled(*(topic for _, _, topic in found))
        return found

    async def nodes(self) -> list[dict[str, Any]]:
        """Describe every node that has, had or could have a store, as `Stores.nodes`."""
        return await (await self._serving()).nodes()

    async def kept_by(self, store_id: str) -> list[int]:
        """Return the numbers of the partitions that the catalog expects in a store."""
        plane = await self._serving()
        return plane.lost_stores.kept_by(store_id)

    async def catalog_store(self) -> str:
        """Return the id of the store beside this controller."""
        return (await self._serving()).membership.catalog_store_id

    async def lost_with(self, store_id: str) -> dict[str, Any]:
        """Say what is lost with a store, as `LostStores.losses`."""
        plane = await self._serving()
        losses = plane.lost_stores.losses(store_id)
        return {**losses, "shipped": await plane.lost_stores.shipped(store_id)}

    async def remote(self) -> list[dict[str, Any]]:
        """Say how far each store is shipped, as `LostStores.remote`."""
        plane = await self._serving()
        return await plane.lost_stores.remote()

    async def forget_store(self, store_id: str, subscriptions: Subscriptions) -> list[str]:
        """Begin the partitions of a lost store anew, as `LostStores.forget`."""
        plane = await self._serving()
        return await plane.lost_stores.forget(store_id, subscriptions)

    async def move_topic(self, topic: str, store_id: str) -> list[str]:
        """Have the partitions of a topic, or a single one, move.

        Returns the ids of the moves; those that are there already have none. Raises TopicNotFound, and as
        `PartitionMoves.begin`.
        """
        plane = await self._serving()
        rows = plane.moves.movable(plane.topics.resolve(TopicName.parse(topic), create=False, stores=list))
        if not rows:
            raise NotAllowedError(f"nothing of {topic} is stored, so there is nothing to move")
        return [each for each in [plane.moves.begin(row, store_id) for row in rows] if each]

    async def drain_store(self, store_id: str) -> None:
        """Have a store become empty, as `PartitionMoves.drain`."""
        plane = await self._serving()
        await plane.moves.drain(store_id)

    async def undrain_store(self, store_id: str) -> None:
        """Let a store take partitions again."""
        plane = await self._serving()
        await plane.moves.undrain(store_id)

    async def balance(self) -> list[str]:
        """Have partitions move until all stores have about as many, as `PartitionMoves.balance`."""
        plane = await self._serving()
        return await plane.moves.balance()

    async def moves(self) -> list[dict[str, Any]]:
        """Describe the moves of partitions, as `PartitionMoves.describe`."""
        plane = await self._serving()
        return plane.moves.describe()

    async def expect_stores(self, count: int) -> None:
        """Keep durably how many stores the cluster is to have; 0 if nobody says."""
        catalog = (await self._serving()).catalog
        catalog.expect_stores(count)
        await catalog.settled()

    # --- schemas: see SchemaRegistry --------------------------------------------------------------

    async def register_schema(self, topic: str, schema: dict[str, Any], by: str) -> int:
        """Return the version of a producer's schema."""
        return await (await self._registering()).register(topic, schema, by)

    async def read_with_schema(self, topic: str, schema: dict[str, Any], by: str) -> int:
        """Let a consumer read a topic with a schema; returns its version, or NO_SCHEMA."""
        return await (await self._registering()).read_with(topic, schema, by)

    async def copy_schema(self, source: str, version: int, target: str, by: str) -> int:
        """Return the version that copies of a topic's messages have on another topic."""
        return await (await self._registering()).copy(source, version, target, by)

    async def schema(self, topic: str, version: int | None = None) -> dict[str, Any]:
        """The fields of one SchemaVersion, or of the latest."""
        return await (await self._registering()).get(topic, version)

    async def schemas(self, topic: str) -> list[dict[str, Any]]:
        """The fields of each SchemaVersion of a topic."""
        return await (await self._registering()).versions(topic)

    async def schema_in_short(self, topic: str) -> dict[str, Any]:
        """Return the latest version's `schemaType` and `schemaVersion`; empty without one."""
        return await (await self._registering()).in_short(topic)

    async def upload_schema(self, topic: str, schema: dict[str, Any], by: str) -> int:
        """Return the version of a schema that an administrator gives."""
        return await (await self._registering()).upload(topic, schema, by)

    async def delete_schema(self, topic: str, by: str, force: bool) -> int:
        """Delete a topic's schema; returns the number of the deletion."""
        return await (await self._registering()).delete(topic, by, force=force)

    async def test_schema(self, topic: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Say whether a schema would be taken."""
        return await (await self._registering()).test(topic, schema)

    async def _registering(self) -> SchemaRegistry:
        return (await self._serving()).schemas

    async def _administering(self) -> Administration:
        return (await self._serving()).administration
