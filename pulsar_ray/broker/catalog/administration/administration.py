"""The controller's calls about tenants, namespaces, policies and permissions.

A call that returned is durable, in a change log and in the catalog. One that is repeated because its answer
was lost is refused as one that comes too late (the tenant exists, or is gone), or changes nothing more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from pulsar_ray.broker.catalog.administration import permissions
from pulsar_ray.broker.catalog.administration.change_event import Action, ChangeEvent, EventType
from pulsar_ray.broker.catalog.administration.change_logs import ChangeLogs
from pulsar_ray.broker.catalog.administration.effective_policies import logs_of
from pulsar_ray.broker.catalog.administration.tenants import BUILT_IN_NAMESPACES, BUILT_IN_TENANTS
from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.serving.logs.line_limits import audit
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, NotAllowedError
from pulsar_ray.model.policies import (
    NAMESPACE,
    TOPIC,
    AppliedPolicy,
    Overrides,
    PolicyValue,
    check_together,
    checked_value,
    consistent_levels,
    find_policy,
)
from pulsar_ray.model.topic_name import (
    SYSTEM_NAMESPACE,
    TenantInfo,
    TopicName,
    change_log,
    check_namespace_name,
    check_tenant_name,
    check_user_may_change,
    is_system_topic,
    system_change_log,
)


class Ending(Protocol):
    """Ends what runs of deleted topics."""

    async def delete_topic(self, topic: str, force: bool) -> None:
        """As the controller's call."""

    async def remove(self, rows: list[PartitionRow]) -> None:
        """End partitions that the catalog has forgotten, and delete their data."""


class Administration:
    """Decides on the owner's loop, and records by `logs`.

    `changed` is awaited with each namespace or topic of which a policy has changed, and that policy's name.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        logs: ChangeLogs,
        ending: Ending,
        settings: Settings,
        changed: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._tenants = topics.catalog.tenants
        self._table = topics.catalog.policies
        self._logs = logs
        self._ending = ending
        self._settings = settings
        self._changed = changed

    # --- tenants ----------------------------------------------------------------------------------

    async def tenants(self) -> list[str]:
        """The tenants' names, sorted."""
        await self._logs.make_known(system_change_log())
        return self._tenants.names()

    async def tenant(self, name: str) -> dict[str, list[str]]:
        """The `admin_roles` and `allowed_clusters` of a tenant. Raises TopicNotFound."""
        await self._logs.make_known(system_change_log())
        return self._tenants.info(name).described()

    async def create_tenant(self, name: str, info: Mapping[str, Any]) -> None:
        """Create a tenant. Raises NotAllowedError if it exists, InvalidConfiguration for a bad name."""
        check_tenant_name(name)
        self._check_keeps_logs()
        fields = TenantInfo().replaced(info)

        def decide(version: int) -> ChangeEvent:
            if self._tenants.find(name) is not None:
                raise NotAllowedError(f"Tenant already exists: {name}; update it, or take another name")
            return ChangeEvent(EventType.TENANT, Action.INSERT, name, version, info=fields)

        await self._logs.record(system_change_log(), decide)

    async def update_tenant(self, name: str, info: Mapping[str, Any]) -> None:
        """Change the fields that are given. Raises TopicNotFound."""

        def decide(version: int) -> ChangeEvent:
            fields = self._tenants.info(name).replaced(info)
            return ChangeEvent(EventType.TENANT, Action.UPDATE, name, version, info=fields)

        await self._logs.record(system_change_log(), decide)

    async def delete_tenant(self, name: str, force: bool) -> None:
        """Delete a tenant, with `force` with its namespaces and their topics' data.

        Raises TopicNotFound, NotAllowedError for one with namespaces unless forced, and for built-in ones.
        """
        if name in BUILT_IN_TENANTS:
            raise NotAllowedError(f"the tenant {name} is part of every cluster and stays: delete another one")
        await self._logs.make_known(system_change_log())
        for namespace in self._tenants.namespaces(name) if force else ():
            await self.delete_namespace(namespace, force=True)

        def decide(version: int) -> ChangeEvent:
            namespaces = self._tenants.namespaces(name)
            if namespaces:
                raise NotAllowedError(
                    f"The tenant still has active namespaces: {name} has {len(namespaces)}, as "
                    f"{namespaces[0]}; delete these first, or force"
                )
            return ChangeEvent(EventType.TENANT, Action.DELETE, name, version)

        await self._logs.record(system_change_log(), decide)

    # --- namespaces -------------------------------------------------------------------------------

    async def namespaces(self, tenant: str) -> list[str]:
        """The namespaces of a tenant as tenant/namespace, sorted. Raises TopicNotFound."""
        await self._logs.make_known(system_change_log())
        return self._tenants.namespaces(tenant)

    async def create_namespace(
        self, namespace: str, policies: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        """Create a namespace with policies.

        Raises TopicNotFound for a missing tenant, NotAllowedError if it exists, InvalidTopicName,
        InvalidConfiguration for policies that cannot be.
        """
        check_namespace_name(namespace)
        self._check_keeps_logs()
        own = {name: checked_value(name, NAMESPACE, value) for name, value in (policies or {}).items()}
        check_together(self._settings, own)

        def decide(version: int) -> ChangeEvent:
            self._tenants.info(namespace.partition("/")[0])
            if self._tenants.has_namespace(namespace):
                raise NotAllowedError(f"Namespace already exists: {namespace}; take another name")
            return ChangeEvent(EventType.NAMESPACE, Action.INSERT, namespace, version, own)

        await self._logs.record(system_change_log(), decide)

    async def delete_namespace(self, namespace: str, force: bool) -> None:
        """Delete a namespace with its policies, with `force` with its topics and their data.

        Raises TopicNotFound, NotAllowedError for one with topics unless forced, and for built-in ones.
        """
        check_namespace_name(namespace)
        if namespace in BUILT_IN_NAMESPACES:
            raise NotAllowedError(
                f"the namespace {namespace} is part of every cluster and stays: delete another one"
            )
        await self._logs.make_known(system_change_log())
        self._tenants.check_namespace(namespace)
        self._tenants.leaving.add(namespace)
        try:
            for topic in self._user_topics(namespace) if force else ():
                await self._ending.delete_topic(topic, True)
            logs = self._topics.catalog.all_partitions(change_log(namespace).full)

            def decide(version: int) -> ChangeEvent:
                topics = self._user_topics(namespace)
                if topics:
                    raise NotAllowedError(
                        f"Cannot delete non empty namespace: {namespace} has {len(topics)} topics, as "
                        f"{topics[0]}; delete these first, or force"
                    )
                return ChangeEvent(EventType.NAMESPACE, Action.DELETE, namespace, version)

            await self._logs.record(system_change_log(), decide)
        finally:
            self._tenants.leaving.discard(namespace)
        await self._ending.remove(logs)

    def _user_topics(self, namespace: str) -> list[str]:
        names = (name for name, _ in self._topics.topics_of(namespace))
        return [name for name in names if not is_system_topic(TopicName.parse(name))]

    async def abandon_change_logs(self, namespace: str) -> list[str]:
        """Give up those change logs of a namespace whose stores are lost for good.

        Policies that only stood there are gone. The log of `pulsar/system` names all tenants and namespaces.
        Returns the partitions that were given up, none that can be read. Raises InvalidTopicName.
        """
        check_namespace_name(namespace)
        return await self._logs.abandon(namespace)

    # --- policies ---------------------------------------------------------------------------------

    async def policies(self, subject: str, name: str = "") -> list[AppliedPolicy]:
        """Return the effective policies of a namespace or topic; all, or one.

        Raises TopicNotFound, InvalidConfiguration for a policy that there is not, and the reason why a log
        with policies cannot be read.
        """
        level, subject = self._level(subject)
        await self._logs.make_known(*logs_of(subject))
        self._check_is_there(level, subject)
        return self._topics.policies.applied(subject, name)

    async def set_policy(self, subject: str, name: str, value: Mapping[str, Any]) -> None:
        """Give a namespace or topic a policy, in place of the one that it had.

        Arguments that are not given are those of the level above. In force on all topics concerned within a
        second. Raises TopicNotFound, InvalidConfiguration for a value that cannot be, or that contradicts
        another policy; NotAllowedError for a system topic, or for any topic where the broker has none.
        """
        level, subject = self._level(subject)
        checked = checked_value(name, level, value)
        await self._change(level, subject, name, lambda own: {**own, name: checked})

    async def remove_policy(self, subject: str, name: str) -> None:
        """Take back a policy: that of the level above holds again. Raises as `set_policy`."""
        level, subject = self._level(subject)
        find_policy(name, level)

        def removed(own: dict[str, PolicyValue]) -> Overrides:
            return {each: value for each, value in own.items() if each != name}

        await self._change(level, subject, name, removed)

    # --- permissions: see `permissions.py` -------------------------------------------------------

    async def permissions(self, subject: str) -> dict[str, dict[str, list[str]]]:
        """Return `roles` and `subscriptions` of a namespace or topic. Raises TopicNotFound."""
        level, subject = self._level(subject)
        await self._logs.make_known(*logs_of(subject))
        self._check_is_there(level, subject)
        own = self._table.overrides(subject)
        return {"roles": permissions.roles_of(own), "subscriptions": permissions.subscriptions_of(own)}

    async def grants(self, subject: str) -> dict[str, Any]:
        """Return all grants that concern a topic, a namespace or a tenant.

        Of what is not there they are empty, so that nobody learns from it what is.
        """
        namespace, own = subject, dict[str, PolicyValue]()
        if "://" in subject:
            _, subject = self._level(subject)
            namespace = TopicName.parse(subject).namespace_name
            await self._logs.make_known(*logs_of(subject))
            own = self._table.overrides(subject)
        elif "/" in subject:
            await self._logs.make_known(*logs_of(subject))
        else:
            await self._logs.make_known(system_change_log())
        tenant = self._tenants.find(namespace.partition("/")[0])
        of_namespace = self._table.overrides(namespace)
        return {
            "admin_roles": [] if tenant is None else tenant.described()["admin_roles"],
            "namespace": permissions.roles_of(of_namespace),
            "topic": permissions.roles_of(own),
            "subscriptions": permissions.subscriptions_of(of_namespace),
        }

    async def grant_permission(self, subject: str, role: str, actions: list[str]) -> None:
        """Give a role actions on a namespace or topic. Raises as `set_policy`."""
        level, subject = self._level(subject)
        await self._change(
            level, subject, permissions.ROLES, lambda own: permissions.granted(own, role, actions)
        )
        audit("%r may %s on %s", role, ", ".join(actions), subject)

    async def revoke_permission(self, subject: str, role: str) -> None:
        """Take a role's actions on a namespace or topic. Raises as `set_policy`."""
        level, subject = self._level(subject)
        await self._change(level, subject, permissions.ROLES, lambda own: permissions.revoked(own, role))
        audit("%r has no permissions on %s any more", role, subject)

    async def grant_subscription_permission(
        self, namespace: str, subscription: str, roles: list[str]
    ) -> None:
        """Let these roles alone consume a subscription, with those before. Raises as `set_policy`."""
        await self._change_subscription(
            namespace, lambda own: permissions.subscription_granted(own, subscription, roles)
        )
        audit("%r may consume %s in %s", roles, subscription, namespace)

    async def revoke_subscription_permission(self, namespace: str, subscription: str, role: str) -> None:
        """Take a role from those of a subscription. Raises as `set_policy`."""
        await self._change_subscription(
            namespace, lambda own: permissions.subscription_revoked(own, subscription, role)
        )
        audit("%r is none of the roles of %s in %s", role, subscription, namespace)

    async def _change_subscription(
        self, namespace: str, change: Callable[[dict[str, PolicyValue]], Overrides]
    ) -> None:
        check_namespace_name(namespace)
        await self._change(NAMESPACE, namespace, permissions.SUBSCRIPTIONS, change)

    async def _change(
        self, level: str, subject: str, name: str, change: Callable[[dict[str, PolicyValue]], Overrides]
    ) -> None:
        self._check_may_have_own(level, subject)
        self._check_keeps_logs()
        kind = EventType.NAMESPACE_POLICY if level == NAMESPACE else EventType.TOPIC_POLICY
        log = logs_of(subject)[-1]

        def decide(version: int) -> ChangeEvent | None:
            self._check_is_there(level, subject)
            before = self._table.overrides(subject)
            after = change(before)
            if after == before:
                return None
            self._check_together(level, subject, name, before, after)
            action = Action.UPDATE if before else Action.INSERT
            return ChangeEvent(kind, action, subject, version, after)

        await self._logs.make_known(*logs_of(subject))
        await self._logs.record(log, decide)
        # A repeat as well: the actors may not have been told before the first answer was lost.
        await self._changed(subject, name)

    def _level(self, subject: str) -> tuple[str, str]:
        """Whether a subject is a namespace or a topic, and its full name."""
        if not isinstance(subject, str):
            raise InvalidConfiguration(f"{subject!r:.100} is neither a namespace nor a topic: give its name")
        if "://" not in subject and subject.count("/") == 1:
            check_namespace_name(subject)
            return NAMESPACE, subject
        name = TopicName.parse(subject)
        row = self._topics.partition(name)
        return TOPIC, row.topic if row is not None else name.full

    def _check_may_have_own(self, level: str, subject: str) -> None:
        if level == NAMESPACE:
            if subject == SYSTEM_NAMESPACE:
                raise NotAllowedError(
                    f"{subject} is the broker's own namespace and has no policies: take another one"
                )
            return
        check_user_may_change(TopicName.parse(subject))
        if not self._settings.topic_level_policies_enabled:
            raise NotAllowedError(
                "this broker has no policies of single topics: set those of the namespace, or start it with "
                "topic_level_policies_enabled"
            )

    def _check_keeps_logs(self) -> None:
        if not self._settings.system_topic_enabled:
            raise NotAllowedError(
                "this broker keeps no system topics, where tenants, namespaces and policies are written: "
                "start it with system_topic_enabled"
            )

    def _check_is_there(self, level: str, subject: str) -> None:
        namespace = subject if level == NAMESPACE else TopicName.parse(subject).namespace_name
        self._tenants.check_namespace(namespace)
        if level == TOPIC and not self._topics.is_known(TopicName.parse(subject)):
            raise self._topics.not_found(TopicName.parse(subject))

    def _check_together(
        self, level: str, subject: str, name: str, before: Overrides, after: Overrides
    ) -> None:
        """Raise InvalidConfiguration for a change of the policy `name` that contradicts others.

        Policies that changed settings of the broker contradict already are in nobody's way.
        """
        settings, changed = self._settings, {name: after[name]} if name in after else {}

        def changed_in(own: Overrides) -> Overrides:
            return {each: value for each, value in own.items() if each != name} | changed

        if level == TOPIC:
            namespace = TopicName.parse(subject).namespace_name
            above, own = consistent_levels(settings, self._table.overrides(namespace), before)
            check_together(settings, above, changed_in(own))
            return
        check_together(settings, changed_in(*consistent_levels(settings, before)))
        for topic in self._table.topics(subject):
            of_topic = self._table.overrides(topic)
            if of_topic:
                above, own = consistent_levels(settings, before, of_topic)
                try:
                    check_together(settings, changed_in(above), own)
                except InvalidConfiguration as error:
                    raise InvalidConfiguration(f"{error.text} (policies of {topic})") from None
