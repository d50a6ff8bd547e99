"""Tenants, and the names of tenants and namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_ray.errors import InvalidConfiguration, InvalidTopicName
from pulsar_ray.model.topic_name import is_namespace

MAX_NAMESPACE_BYTES = 512
"""The longest tenant/namespace: its topics' full names have at most 2048 bytes."""
_LETTERS = "letters, digits and -=:._, and not . or .. alone"


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """The roles and clusters of a tenant: kept and answered, and heeded by nothing yet."""

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()

    @classmethod
    def of(cls, admin_roles: Any = (), allowed_clusters: Any = ()) -> TenantInfo:
        """Check roles and clusters. Raises InvalidConfiguration unless they are texts."""
        return cls(_texts("admin_roles", admin_roles), _texts("allowed_clusters", allowed_clusters))

    def replaced(self, changes: Mapping[str, Any]) -> TenantInfo:
        """Return the info with other fields. Raises InvalidConfiguration for one that there is not."""
        fields = {"admin_roles": self.admin_roles, "allowed_clusters": self.allowed_clusters}
        for name in changes:
            if name not in fields:
                raise InvalidConfiguration(f"a tenant has no {name!r}: it has {', '.join(fields)}")
        return TenantInfo.of(**{**fields, **changes})

    def described(self) -> dict[str, list[str]]:
        """Return the fields by name."""
        return {"admin_roles": list(self.admin_roles), "allowed_clusters": list(self.allowed_clusters)}


def check_tenant_name(name: Any) -> None:
    """Raise InvalidConfiguration for a text that is no name of a tenant."""
    if not isinstance(name, str) or not is_namespace(f"{name}/x") or not _is_safe([name]):
        raise InvalidConfiguration(f"{name!r:.100} cannot be a tenant: use {_LETTERS}")


def check_namespace_name(name: Any) -> None:
    """Raise InvalidTopicName for a text that is no name of a namespace."""
    if not isinstance(name, str) or not is_namespace(name) or not _is_safe(name.split("/")):
        raise InvalidTopicName(
            f"{name!r:.100} is not a namespace: use 'tenant/namespace', each of {_LETTERS}"
        )


def _is_safe(parts: list[str]) -> bool:
    return "." not in parts and ".." not in parts and sum(map(len, parts)) < MAX_NAMESPACE_BYTES


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidConfiguration(f"{name} is {value!r:.100}: give a list of texts")
    texts = tuple(value)
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidConfiguration(f"{name} is {list(texts)!r:.100}: give a list of texts that are not empty")
    return texts
