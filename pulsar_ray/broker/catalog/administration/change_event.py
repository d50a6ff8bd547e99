"""One change of a tenant, namespace, policy or schema in its log (ADR 0031).

In the spirit of Pulsar's PulsarEvent: each event has all of its subject's state, so that the last one of a
subject decides, and reading the same events twice changes nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pulsar_ray.broker.catalog.schemas.schema_table import SchemaEntry
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.policies import Overrides
from pulsar_ray.model.topic_name import (
    TenantInfo,
    TopicName,
    change_log_partition,
    check_namespace_name,
    check_tenant_name,
    system_change_log,
)

_MAX_VERSION = 2**63 - 1


class EventType(Enum):
    """The kind of a change's subject."""

    TENANT = "TENANT"
    NAMESPACE = "NAMESPACE"
    CHANGE_LOG = "CHANGE_LOG"
    """A partition of a namespace's log that is used from now on."""
    NAMESPACE_POLICY = "NAMESPACE_POLICY"
    TOPIC_POLICY = "TOPIC_POLICY"
    TOPIC_SCHEMA = "TOPIC_SCHEMA"
    """One version of a topic's schema; its deletion is that of all of them."""


class Action(Enum):
    """The change that an event makes to its subject."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


class NotAnEvent(ValueError):
    """A record of a change log is damaged, or no broker wrote it: the reason."""


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """A change of one subject.

    `subject` is a tenant, a namespace, or the full name of a topic or log partition. `version` rises with
    each change in a cluster. `policies` are all that the subject has after the change. `schema` is one
    version of a topic's schema (`schemas/schema_table.py`).
    """

    type: EventType
    action: Action
    subject: str
    version: int
    policies: Overrides = field(default_factory=dict)
    info: TenantInfo = field(default_factory=TenantInfo)
    schema: SchemaEntry | None = None

    @property
    def key(self) -> tuple[EventType, str]:
        """The same for all events of which the last one decides."""
        entry = "" if self.schema is None else f"{self.schema.version}#"
        return self.type, entry + self.subject

    @property
    def log(self) -> TopicName:
        """The topic, or partition, that the event is written to."""
        if self.type is EventType.NAMESPACE_POLICY:
            return change_log_partition(self.subject, self.subject)
        if self.type in (EventType.TOPIC_POLICY, EventType.TOPIC_SCHEMA):
            return change_log_partition(TopicName.parse(self.subject).namespace_name, self.subject)
        return system_change_log()

    @property
    def namespace(self) -> str:
        """The namespace it concerns; "" for a tenant."""
        if "://" in self.subject:
            return TopicName.parse(self.subject).namespace_name
        return self.subject if "/" in self.subject else ""

    def to_json(self) -> str:
        """Encode the event as a message's value."""
        topic = TopicName.parse(self.subject) if "://" in self.subject else None
        tenant, _, namespace = (topic.namespace_name if topic else self.subject).partition("/")
        content: dict[str, Any] = {
            "eventType": self.type.value,
            "actionType": self.action.value,
            "domain": topic.domain if topic else "",
            "tenant": tenant,
            "namespace": namespace,
            "topic": topic.full.split("/", 4)[-1] if topic else "",
            "policies": {name: dict(value) for name, value in self.policies.items()},
            "version": self.version,
        }
        if self.type is EventType.TENANT:
            content["adminRoles"] = list(self.info.admin_roles)
            content["allowedClusters"] = list(self.info.allowed_clusters)
        if self.schema is not None:
            content["schema"] = self.schema.fields()
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: bytes | str) -> ChangeEvent:
        """Decode a message's value. Raises NotAnEvent with the reason."""
        try:
            content = json.loads(text)
            event = cls(
                EventType(content["eventType"]),
                Action(content["actionType"]),
                _subject(content),
                _version(content["version"]),
                _policies(content["policies"]),
                TenantInfo.of(content.get("adminRoles", ()), content.get("allowedClusters", ())),
                SchemaEntry.of(content["schema"]) if "schema" in content else None,
            )
            if event.type is EventType.TOPIC_SCHEMA and (event.schema is None) != (
                event.action is Action.DELETE
            ):
                raise ValueError("it has no version of a schema")
        except KeyError as error:
            raise NotAnEvent(f"it has no field {error}") from None
        except (ValueError, TypeError, AttributeError, RecursionError, PulsarException) as error:
            raise NotAnEvent(str(error)) from None
        return event


def _subject(content: dict[str, Any]) -> str:
    kind = EventType(content["eventType"])
    domain, tenant, namespace, topic = (content[name] for name in ("domain", "tenant", "namespace", "topic"))
    check_tenant_name(tenant)
    if kind is EventType.TENANT:
        return str(tenant)
    check_namespace_name(f"{tenant}/{namespace}")
    if kind in (EventType.NAMESPACE, EventType.NAMESPACE_POLICY):
        return f"{tenant}/{namespace}"
    return TopicName.parse(f"{domain}://{tenant}/{namespace}/{topic}").full


def _version(value: Any) -> int:
    if type(value) is not int or not 0 < value <= _MAX_VERSION:
        raise ValueError(f"the version {value!r:.50} is none")
    return value


def _policies(value: Any) -> dict[str, dict[str, Any]]:
    if type(value) is not dict or any(type(each) is not dict for each in value.values()):
        raise ValueError("its policies are no values by name")
    return value
