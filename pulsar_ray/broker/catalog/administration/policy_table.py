"""The policies that namespaces and topics have of their own, in the catalog."""

from __future__ import annotations

import json

from pulsar_ray.broker.catalog.catalog_file import CatalogFile
from pulsar_ray.model.policies import Overrides, PolicyValue


class PolicyTable:
    """Policies by subject: tenant/namespace, or the full name of a whole topic.

    A subject's version rises with each change of what holds, and stays when its last policy is removed.
    """

    def __init__(self, db: CatalogFile) -> None:
        self._db = db

    def overrides(self, subject: str) -> dict[str, PolicyValue]:
        """Return the policies that a subject has of its own."""
        rows = self._db.execute("SELECT name, value FROM policy WHERE subject = ? ORDER BY name", (subject,))
        return {name: json.loads(value) for name, value in rows}

    def version(self, subject: str) -> int:
        """Return the version of all that holds for a subject; 0 without any."""
        rows = self._db.execute("SELECT version FROM policy_version WHERE subject = ?", (subject,))
        return int(rows[0][0]) if rows else 0

    def put(self, subject: str, overrides: Overrides, version: int) -> None:
        """Give a subject these policies and no others."""
        with self._db.transaction():
            self._db.execute("DELETE FROM policy WHERE subject = ?", (subject,))
            for name, value in overrides.items():
                self._db.execute(
                    "INSERT INTO policy VALUES (?, ?, ?)", (subject, name, json.dumps(dict(value)))
                )
            self.touch(subject, version)

    def touch(self, subject: str, version: int) -> None:
        """Raise a subject's version without a change of its own policies."""
        self._db.execute(
            "INSERT INTO policy_version (subject, version) VALUES (?, ?) "
            "ON CONFLICT (subject) DO UPDATE SET version = MAX(version, excluded.version)",
            (subject, version),
        )
        self.seen_version(version)

    def forget(self, subject: str) -> None:
        """Forget a subject that was deleted."""
        with self._db.transaction():
            self._db.execute("DELETE FROM policy WHERE subject = ?", (subject,))
            self._db.execute("DELETE FROM policy_version WHERE subject = ?", (subject,))

    def topics(self, namespace: str) -> list[str]:
        """The topics of a namespace that have policies of their own, or had."""
        rows = self._db.execute(
            "SELECT subject FROM policy_version "
            "WHERE substr(subject, instr(subject, '://') + 3, ?) = ? AND instr(subject, '://') > 0 "
            "ORDER BY subject",
            (len(namespace) + 1, f"{namespace}/"),
        )
        return [row[0] for row in rows]

    def next_version(self, at_least: int) -> int:
        """Return a version above all that were given, whatever the clock says."""
        return max(at_least, self.last_version + 1)

    @property
    def last_version(self) -> int:
        """The highest version that was given."""
        ((last,),) = self._db.execute("SELECT value FROM last_version")
        return int(last)

    def seen_version(self, version: int) -> None:
        """Grant no version up to this one, which stands in a change log."""
        self._db.execute("UPDATE last_version SET value = MAX(value, ?)", (version,))
