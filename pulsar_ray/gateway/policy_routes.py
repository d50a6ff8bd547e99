"""Policies of namespaces and topics, in Pulsar's paths and bodies: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pulsar_ray.gateway.calls import NAMESPACE, TOPIC, Calls, namespace_of, topic_of
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import (
    Handler,
    Refusal,
    body_of,
    done,
    flag_of,
    found,
    nothing_like,
    number_of,
)
from pulsar_ray.model.policies import NAMESPACE as OF_NAMESPACE
from pulsar_ray.model.policies import TOPIC as OF_TOPIC
from pulsar_ray.model.policies import AppliedPolicy
from pulsar_ray.security.authorization import Right

_RIGHT = Right.TENANT_ADMIN
SIZE, AGE = "destination_storage", "message_age"


@dataclass(frozen=True)
class Form:
    """How REST writes a policy: its path words, and the names of its values.

    With `fields` the body is an object; without, it is the policy's only value. `fixed` is what is
    answered besides.
    """

    policy: str
    of_namespace: str
    of_topic: str
    kind: type
    fields: Mapping[str, str] | None = None
    fixed: Mapping[str, Any] | None = None
    method: str = "POST"
    topic_method: str = "POST"
    query: str = ""
    """A parameter that may hold the value instead of a body."""

    def body(self, applied: AppliedPolicy, is_effective: bool, level: str) -> Any:
        """Return what a GET answers: None where this level has not set it."""
        value = {
            name: each
            for name, each in applied.value.items()
            if is_effective or applied.sources[name] == level
        }
        if not value:
            return None
        if self.fields is None:
            (only,) = value.values()
            return [name for name in str(only).split(",") if name] if self.kind is list else only
        return {
            **(self.fixed or {}),
            **{theirs: value[ours] for theirs, ours in self.fields.items() if ours in value},
        }

    def values(self, body: Any) -> dict[str, Any]:
        """Return the policy's values of the body of a change."""
        if self.fields is None:
            return {self.policy: ",".join(map(str, body)) if self.kind is list else body}
        return {ours: body[theirs] for theirs, ours in self.fields.items() if body.get(theirs) is not None}


FORMS = (
    Form(
        "retention",
        "retention",
        "retention",
        dict,
        {
            "retentionTimeInMinutes": "retention_time_in_minutes",
            "retentionSizeInMB": "retention_size_in_mb",
        },
    ),
    Form("message_ttl", "messageTTL", "messageTTL", int, query="messageTTL"),
    Form("deduplication", "deduplication", "deduplicationEnabled", bool),
    Form("max_producers", "maxProducersPerTopic", "maxProducers", int),
    Form("max_consumers", "maxConsumersPerTopic", "maxConsumers", int),
    Form("max_consumers_per_subscription", "maxConsumersPerSubscription", "maxConsumersPerSubscription", int),
    Form(
        "max_unacked_messages_per_consumer",
        "maxUnackedMessagesPerConsumer",
        "maxUnackedMessagesOnConsumer",
        int,
    ),
    Form(
        "max_unacked_messages_per_subscription",
        "maxUnackedMessagesPerSubscription",
        "maxUnackedMessagesOnSubscription",
        int,
    ),
    Form("max_subscriptions_per_topic", "maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic", int),
    Form("max_topics_per_namespace", "maxTopicsPerNamespace", "", int),
    Form("max_message_size", "", "maxMessageSize", int),
    Form(
        "delayed_delivery",
        "delayedDelivery",
        "delayedDelivery",
        dict,
        {
            "tickTime": "tick_time_millis",
            "active": "active",
            "maxDeliveryDelayInMillis": "max_delivery_delay_in_millis",
        },
    ),
    Form(
        "inactive_topic_policies",
        "inactiveTopicPolicies",
        "inactiveTopicPolicies",
        dict,
        {
            "inactiveTopicDeleteMode": "inactive_topic_delete_mode",
            "maxInactiveDurationSeconds": "max_inactive_duration_seconds",
            "deleteWhileInactive": "delete_while_inactive",
        },
    ),
    Form(
        "auto_topic_creation",
        "autoTopicCreation",
        "",
        dict,
        {
            "allowAutoTopicCreation": "allow_auto_topic_creation",
            "topicType": "topic_type",
            "defaultNumPartitions": "default_num_partitions",
        },
    ),
    Form(
        "auto_subscription_creation",
        "autoSubscriptionCreation",
        "autoSubscriptionCreation",
        dict,
        {"allowAutoSubscriptionCreation": "auto_subscription_creation"},
    ),
    Form("subscription_expiration_time", "subscriptionExpirationTime", "", int),
    Form(
        "schema_compatibility_strategy",
        "schemaCompatibilityStrategy",
        "schemaCompatibilityStrategy",
        str,
        method="PUT",
        topic_method="PUT",
    ),
    Form("schema_validation_enforced", "schemaValidationEnforced", "schemaValidationEnforced", bool),
    Form("is_allow_auto_update_schema", "isAllowAutoUpdateSchema", "", bool),
    Form(
        "subscription_dispatch_rate",
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        dict,
        {
            "dispatchThrottlingRateInMsg": "dispatch_throttling_rate_in_msg",
            "dispatchThrottlingRateInByte": "dispatch_throttling_rate_in_byte",
        },
        {"relativeToPublishRate": False, "ratePeriodInSecond": 1},
    ),
    Form(
        "publish_rate",
        "publishRate",
        "publishRate",
        dict,
        {
            "publishThrottlingRateInMsg": "publish_throttling_rate_in_msg",
            "publishThrottlingRateInByte": "publish_throttling_rate_in_byte",
        },
    ),
    Form("subscription_types_enabled", "subscriptionTypesEnabled", "subscriptionTypesEnabled", list),
    Form("compaction_threshold", "compactionThreshold", "compactionThreshold", int, method="PUT"),
    Form("offload_threshold", "offloadThreshold", "offloadThreshold", int, method="PUT"),
    Form(
        "offload_threshold_in_seconds",
        "offloadThresholdInSeconds",
        "offloadThresholdInSeconds",
        int,
        method="PUT",
    ),
    Form("offload_deletion_lag", "offloadDeletionLagMs", "offloadDeletionLagMs", int, method="PUT"),
)
_NOT_HERE = {
    "persistence": "ensembles of bookies",
    "deduplicationSnapshotInterval": "snapshots of deduplication",
    "dispatchRate": "rate of all subscriptions together; subscriptionDispatchRate limits each",
    "offloadPolicies": "drivers of offloading; offloadThreshold and offloadThresholdInSeconds say when",
    "antiAffinity": "groups of namespaces",
    "dispatcherPauseOnAckStatePersistent": "pause while states of acknowledgments are written",
    "replication": "replication",
    "replicatorDispatchRate": "replication",
    "allowedClusters": "replication",
    "shadowTopics": "shadow topics",
    "subscribeRate": "limit of how often consumers come",
    "encryptionRequired": "encryption by producers",
    "subscriptionAuthMode": "names of subscriptions that begin with a role's",
    "resourcegroup{rest:(/.*)?}": "groups of resources",
    "resourceGroup": "groups of resources",
    "entryFilters": "filters of entries",
    "migration": "migration to another cluster",
}


@dataclass(frozen=True)
class _Level:
    """One of the two levels: where its paths are, and whose policies they change."""

    name: str
    path: str
    subject: Callable[[web.Request], str]


class PolicyRoutes:
    """Routes of policies, each a call of `Admin.namespaces.policies` or `Admin.topics.policies`."""

    def __init__(self, calls: Calls) -> None:
        self._call = calls
        self._policies = {
            OF_NAMESPACE: calls.admin.namespaces.policies,
            OF_TOPIC: calls.admin.topics.policies,
        }

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes of both levels."""
        levels = (
            _Level(OF_NAMESPACE, f"/admin/v2/namespaces/{NAMESPACE}", namespace_of),
            _Level(OF_TOPIC, f"/admin/v2/{TOPIC}", topic_of),
        )
        for level in levels:
            for form in FORMS:
                self._add_form(routes, level, form)
            self._add_quota(routes, level)
            for name, what in _NOT_HERE.items():
                routes.add("*", f"{level.path}/{name}", Right.KNOWN, nothing_like(what))
        routes.add("GET", f"/admin/v2/namespaces/{NAMESPACE}", _RIGHT, self._all_of_namespace)

    def _add_form(self, routes: GuardedRoutes, level: _Level, form: Form) -> None:
        is_topic = level.name == OF_TOPIC
        name = form.of_topic if is_topic else form.of_namespace
        if not name:
            return

        async def get(request: web.Request) -> web.Response:
            applied = await self._get(level, request, form.policy)
            body = form.body(applied, flag_of(request, "applied"), level.name)
            return found(0 if body is None and form.policy == "max_topics_per_namespace" else body)

        async def change(request: web.Request) -> web.Response:
            if form.query and form.query in request.query:
                value: Any = number_of(form.query, request.query[form.query])
            else:
                value = await body_of(request, form.kind)
            await self._set(level, request, form.policy, form.values(value))
            return done()

        async def remove(request: web.Request) -> web.Response:
            await self._remove(level, request, form.policy)
            return done()

        _name_each(form.policy, get, change, remove)
        path = f"{level.path}/{name}"
        routes.add("GET", path, _RIGHT, get)
        routes.add(form.topic_method if is_topic else form.method, path, _RIGHT, change)
        routes.add("DELETE", path, _RIGHT, remove)

    async def _get(self, level: _Level, request: web.Request, policy: str) -> AppliedPolicy:
        return await self._call(self._policies[level.name].get, level.subject(request), policy)

    async def _set(self, level: _Level, request: web.Request, policy: str, values: dict[str, Any]) -> None:
        await self._call(self._policies[level.name].set, level.subject(request), policy, **values)

    async def _remove(self, level: _Level, request: web.Request, policy: str) -> None:
        await self._call(self._policies[level.name].remove, level.subject(request), policy)

    # --- a policy whose requests have a form of their own -----------------------------------------

    def _add_quota(self, routes: GuardedRoutes, level: _Level) -> None:
        async def get(request: web.Request) -> web.Response:
            applied = await self._get(level, request, "backlog_quota")
            return found(_quotas(applied, flag_of(request, "applied"), level.name))

        async def change(request: web.Request) -> web.Response:
            kind = _quota_kind(request)
            body = await body_of(request, dict)
            limit = {"limit_size": body.get("limitSize", body.get("limit"))}
            if kind == AGE:
                limit = {"limit_time": body.get("limitTime")}
            values = {**limit, "policy": body.get("policy")}
            kept = await self._own_quota(level, request)
            given = {name: value for name, value in values.items() if value is not None}
            await self._set(level, request, "backlog_quota", {**kept, **given})
            return done()

        async def remove(request: web.Request) -> web.Response:
            kept = await self._own_quota(level, request)
            kept.pop("limit_time" if _quota_kind(request) == AGE else "limit_size", None)
            if kept.keys() - {"policy"}:
                await self._set(level, request, "backlog_quota", kept)
            else:
                await self._remove(level, request, "backlog_quota")
            return done()

        _name_each("backlog_quota", get, change, remove)
        routes.add("GET", f"{level.path}/backlogQuotaMap", _RIGHT, get)
        routes.add("POST", f"{level.path}/backlogQuota", _RIGHT, change)
        routes.add("DELETE", f"{level.path}/backlogQuota", _RIGHT, remove)

    async def _own_quota(self, level: _Level, request: web.Request) -> dict[str, Any]:
        applied = await self._get(level, request, "backlog_quota")
        return {name: value for name, value in applied.value.items() if applied.sources[name] == level.name}

    async def _all_of_namespace(self, request: web.Request) -> web.Response:
        """Return all policies of a namespace."""
        namespace = namespace_of(request)
        await self._call(self._call.admin.topics.partitions, namespace)
        applied = await self._call(self._policies[OF_NAMESPACE].list, namespace)
        described: dict[str, Any] = {
            "replication_clusters": [],
            "bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1},
            "backlog_quota_map": _quotas(applied["backlog_quota"], False, OF_NAMESPACE),
            "deleted": False,
        }
        for form in FORMS:
            if (
                form.of_namespace
                and (body := form.body(applied[form.policy], False, OF_NAMESPACE)) is not None
            ):
                described[_IN_POLICIES.get(form.policy, form.policy)] = body
        return found(described)


_IN_POLICIES = {
    "retention": "retention_policies",
    "message_ttl": "message_ttl_in_seconds",
    "deduplication": "deduplicationEnabled",
    "delayed_delivery": "delayed_delivery_policies",
    "max_producers": "max_producers_per_topic",
    "max_consumers": "max_consumers_per_topic",
    "auto_topic_creation": "autoTopicCreationOverride",
    "auto_subscription_creation": "autoSubscriptionCreationOverride",
    "subscription_expiration_time": "subscription_expiration_time_minutes",
}


def _quota_kind(request: web.Request) -> str:
    kind = request.query.get("backlogQuotaType", SIZE)
    if kind not in (SIZE, AGE):
        raise Refusal(400, f"backlogQuotaType={kind[:100]}: give {SIZE} or {AGE}")
    return kind


def _quotas(applied: AppliedPolicy, is_effective: bool, level: str) -> dict[str, Any]:
    """Return the limits by size and by age, those that are set."""
    quotas = {}
    for kind, name in ((SIZE, "limit_size"), (AGE, "limit_time")):
        limit = int(applied.value.get(name, -1))
        if limit >= 0 and (is_effective or applied.sources[name] == level):
            size, age = (limit, -1) if kind == SIZE else (-1, limit)
            quotas[kind] = {
                "limit": size,
                "limitSize": size,
                "limitTime": age,
                "policy": applied.value["policy"],
            }
    return quotas


def _name_each(policy: str, *handlers: Handler) -> None:
    """Give the handlers that get, set and remove a policy their lines in the description."""
    for handler, verb in zip(handlers, ("Return", "Set", "Remove"), strict=True):
        handler.__doc__ = f"{verb} the policy {policy}."
