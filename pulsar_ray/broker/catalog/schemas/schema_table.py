"""The versions of topics' schemas in the catalog."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_ray.broker.catalog.catalog_file import CatalogFile
from pulsar_ray.broker.catalog.schemas.content import digest
from pulsar_ray.errors import CorruptData
from pulsar_ray.model.topic_schema import REGISTERED_BY_LENGTH, SchemaVersion, TopicSchema

_DELETION = ""
"""The type of a number that a deletion has taken."""
_MAX_NUMBER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """One number of a topic's schemas: a version, or the deletion of all below it.

    `drops_texts`: a deletion after which those versions cannot be read any more.
    """

    version: int
    schema: TopicSchema | None
    registered_by: str
    registered_ms: int
    drops_texts: bool = False

    def fields(self) -> dict[str, Any]:
        """Return it as plain values, for a change log."""
        content: dict[str, Any] = {
            "version": self.version,
            "registeredBy": self.registered_by,
            "timestamp": self.registered_ms,
        }
        if self.schema is None:
            return {**content, "deletes": True, "dropsTexts": self.drops_texts}
        return {**content, **self.schema.fields()}

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> SchemaEntry:
        """Take one back. Raises KeyError and ValueError for fields that are none."""
        version, by, when = fields["version"], fields["registeredBy"], fields["timestamp"]
        if type(version) is not int or not 0 <= version <= _MAX_NUMBER:
            raise ValueError(f"{version!r:.50} is no version of a schema")
        if type(by) is not str or type(when) is not int:
            raise ValueError("a version of a schema does not say by whom it is, and when")
        if fields.get("deletes"):
            return cls(version, None, by, when, bool(fields["dropsTexts"]))
        schema = TopicSchema.of(fields)
        digest(schema)
        return cls(version, schema, by, when)


class SchemaTable:
    """Keeps versions by the full name of a whole topic.

    Numbers rise, and are not used twice.
    """

    def __init__(self, db: CatalogFile) -> None:
        self._db = db

    def last_version(self, topic: str) -> int | None:
        """Return the highest number that was given, to a deletion too; None without any."""
        ((last,),) = self._db.execute("SELECT MAX(version) FROM schema_version WHERE topic = ?", (topic,))
        return None if last is None else int(last)

    def _deleted_to(self, topic: str) -> int:
        ((last,),) = self._db.execute(
            "SELECT MAX(version) FROM schema_version WHERE topic = ? AND type = ?", (topic, _DELETION)
        )
        return -1 if last is None else int(last)

    def known(self, topic: str, content: str) -> int | None:
        """Return the version with this content (`digest`) that is not deleted."""
        rows = self._db.execute(
            "SELECT version FROM schema_version WHERE topic = ? AND digest = ? AND version > ?",
            (topic, content, self._deleted_to(topic)),
        )
        return int(rows[0][0]) if rows else None

    def has_schema(self, topic: str) -> bool:
        """Whether a topic has a version that is not deleted."""
        last = self.last_version(topic)
        return last is not None and last > self._deleted_to(topic)

    def count(self, topic: str) -> int:
        """How many numbers of a topic are kept."""
        ((count,),) = self._db.execute("SELECT COUNT(*) FROM schema_version WHERE topic = ?", (topic,))
        return int(count)

    def version(self, topic: str, version: int) -> SchemaVersion | None:
        """Return one version, a deleted one too whose text is kept. Raises CorruptData."""
        if not 0 <= version <= _MAX_NUMBER:
            return None
        rows = self._rows("topic = ? AND version = ? AND type <> ''", topic, version)
        return self._checked(topic, rows[0]) if rows else None

    def versions(self, topic: str) -> list[SchemaVersion]:
        """Return all versions that are not deleted, in order. Raises CorruptData."""
        rows = self._rows("topic = ? AND version > ? ORDER BY version", topic, self._deleted_to(topic))
        return [self._checked(topic, row) for row in rows]

    def latest(self, topic: str) -> SchemaVersion | None:
        """Return the last version that is not deleted. Raises CorruptData."""
        last = self.last_version(topic)
        return self.version(topic, last) if last is not None and last > self._deleted_to(topic) else None

    def in_short(self, topic: str) -> dict[str, Any]:
        """Return `schemaType` and `schemaVersion` of the latest version; empty without one."""
        rows = self._db.execute(
            "SELECT type, version FROM schema_version WHERE topic = ? ORDER BY version DESC LIMIT 1", (topic,)
        )
        if not rows or rows[0][0] == _DELETION:
            return {}
        return {"schemaType": rows[0][0], "schemaVersion": int(rows[0][1])}

    def _rows(self, condition: str, *values: str | int) -> list[Any]:
        return self._db.execute(
            "SELECT version, type, text, properties, digest, registered_by, registered_ms "  # noqa: S608
            f"FROM schema_version WHERE {condition}",  # one of the conditions above, with no value in it
            values,
        )

    def _checked(self, topic: str, row: Any) -> SchemaVersion:
        version, kind, text, properties, content, by, when = row
        try:
            schema = TopicSchema(kind, text, json.loads(properties))
            is_sound = digest(schema) == content
        except (ValueError, TypeError, RecursionError):
            is_sound = False
        if not is_sound:
            raise CorruptData(
                "meta.sqlite",
                0,
                f"version {version} of the schema of {topic} is damaged; messages of other versions can be "
                "read. Register the schema anew, or rebuild the catalog",
            )
        return SchemaVersion(version, schema, by, when)

    def put(self, topic: str, entry: SchemaEntry, change_version: int) -> None:
        """Keep a number of a topic.

        One that is there stays unless the change is later.
        """
        schema = entry.schema or TopicSchema(_DELETION, "")
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO schema_version VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (topic, version) DO UPDATE SET type = excluded.type, text = excluded.text, "
                "properties = excluded.properties, digest = excluded.digest, "
                "registered_by = excluded.registered_by, registered_ms = excluded.registered_ms, "
                "change_version = excluded.change_version WHERE change_version < excluded.change_version",
                (
                    topic,
                    entry.version,
                    schema.type,
                    schema.text,
                    json.dumps(dict(schema.properties)),
                    "" if entry.schema is None else digest(schema),
                    entry.registered_by[:REGISTERED_BY_LENGTH],
                    entry.registered_ms,
                    change_version,
                ),
            )
            if entry.drops_texts:
                self._db.execute(
                    "DELETE FROM schema_version WHERE topic = ? AND version < ?", (topic, entry.version)
                )

    def entries(self, topic: str) -> list[tuple[SchemaEntry, int]]:
        """Return all that is kept of a topic, each with the version of its change.

        Damaged ones are left out.
        """
        rows = self._db.execute(
            "SELECT version, type, text, properties, registered_by, registered_ms, change_version "
            "FROM schema_version WHERE topic = ? ORDER BY version",
            (topic,),
        )
        found: list[tuple[SchemaEntry, int]] = []
        for version, kind, text, properties, by, when, change_version in rows:
            schema = None
            if kind != _DELETION:
                try:
                    schema = TopicSchema(kind, text, json.loads(properties))
                    digest(schema)
                except (ValueError, RecursionError):
                    continue
            found.append((SchemaEntry(version, schema, by, when), change_version))
        return found

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        self._db.execute("DELETE FROM schema_version WHERE topic = ?", (topic,))

    def topics(self, namespace: str) -> list[str]:
        """The topics of a namespace that have schemas, or had."""
        rows = self._db.execute(
            "SELECT DISTINCT topic FROM schema_version "
            "WHERE substr(topic, instr(topic, '://') + 3, ?) = ? ORDER BY topic",
            (len(namespace) + 1, f"{namespace}/"),
        )
        return [row[0] for row in rows]
