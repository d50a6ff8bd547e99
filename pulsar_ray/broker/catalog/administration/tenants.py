"""The tenants and namespaces of the catalog."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable

from pulsar_ray.broker.catalog.catalog_file import CatalogFile
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.model.topic_name import TenantInfo

BUILT_IN_NAMESPACES = ("public/default", "pulsar/system")
BUILT_IN_TENANTS = ("public", "pulsar")


class Tenants:
    """Tables over the catalog's file; every change is committed before the call returns.

    A namespace in `leaving` is being deleted: it takes no new topic.
    """

    def __init__(self, db: CatalogFile) -> None:
        self._db = db
        self.leaving: set[str] = set()
        for name in BUILT_IN_NAMESPACES:
            self.add_namespace(name)
        # Catalogs of version 2 know namespaces alone.
        db.execute(
            "INSERT OR IGNORE INTO tenant (name) "
            "SELECT DISTINCT substr(name, 1, instr(name, '/') - 1) FROM namespace"
        )

    def names(self) -> list[str]:
        """All tenants, sorted."""
        return [row[0] for row in self._db.execute("SELECT name FROM tenant ORDER BY name")]

    def find(self, name: str) -> TenantInfo | None:
        """Return a tenant's info, or None."""
        rows = self._db.execute("SELECT admin_roles, allowed_clusters FROM tenant WHERE name = ?", (name,))
        return TenantInfo.of(*map(json.loads, rows[0])) if rows else None

    def info(self, name: str) -> TenantInfo:
        """Return a tenant's info. Raises TopicNotFound with the nearest name."""
        found = self.find(name)
        if found is None:
            raise TopicNotFound(f"Tenant does not exist: {name!r:.200}{did_you_mean(name, self.names())}")
        return found

    def put(self, name: str, info: TenantInfo) -> None:
        """Add a tenant, or change it."""
        fields = info.described()
        self._db.execute(
            "INSERT OR REPLACE INTO tenant VALUES (?, ?, ?)",
            (name, json.dumps(fields["admin_roles"]), json.dumps(fields["allowed_clusters"])),
        )

    def remove(self, name: str) -> None:
        """Forget a tenant, which has no namespaces."""
        self._db.execute("DELETE FROM tenant WHERE name = ?", (name,))

    def namespaces(self, tenant: str) -> list[str]:
        """The namespaces of a tenant, sorted. Raises TopicNotFound for a missing tenant."""
        self.info(tenant)
        return self.namespaces_below(tenant)

    def namespaces_below(self, tenant: str) -> list[str]:
        """The namespaces of a tenant, sorted, whether or not there is such a tenant."""
        return [name for name in self.all_namespaces() if name.startswith(f"{tenant}/")]

    def all_namespaces(self) -> list[str]:
        """The namespaces of all tenants, sorted."""
        return [row[0] for row in self._db.execute("SELECT name FROM namespace ORDER BY name")]

    def has_namespace(self, name: str) -> bool:
        """Whether there is a namespace of that name."""
        return bool(self._db.execute("SELECT 1 FROM namespace WHERE name = ?", (name,)))

    def check_namespace(self, name: str) -> None:
        """Raise TopicNotFound, with the nearest name, for a namespace that there is not."""
        if self.has_namespace(name):
            if name in self.leaving:
                raise TopicNotFound(f"namespace {name!r} is being deleted: create it again afterwards")
            return
        tenant = name.partition("/")[0]
        if self.find(tenant) is None:
            near = did_you_mean(tenant, self.names())
            raise TopicNotFound(f"Tenant does not exist: {tenant!r:.200} of namespace {name!r:.200}{near}")
        near = did_you_mean(name, self.all_namespaces())
        raise TopicNotFound(f"Namespace not found: {name!r:.200} does not exist{near}")

    def add_namespace(self, name: str) -> None:
        """Add a namespace, and its tenant if that is not there."""
        self._db.execute("INSERT OR IGNORE INTO tenant (name) VALUES (?)", (name.partition("/")[0],))
        self._db.execute("INSERT OR IGNORE INTO namespace VALUES (?)", (name,))

    def remove_namespace(self, name: str) -> None:
        """Forget a namespace, which has no topics."""
        self._db.execute("DELETE FROM namespace WHERE name = ?", (name,))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint at the nearest name, or at all of a few."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; there are {', '.join(names)}" if len(names) <= 10 else ""
