"""`pulsar-ray schemas`: the versions of topics' schemas."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import IO, Any

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.enums import SchemaType
from pulsar_ray.model.topic_schema import SchemaVersion, TopicSchema

_file = click.argument("file", type=click.File(encoding="utf-8"), default="-")
_kind = click.option(
    "-t",
    "--type",
    "kind",
    type=click.Choice([kind.name for kind in SchemaType if kind.value > 0]),
    default="AVRO",
    show_default=True,
    help="Of a FILE that has a definition alone.",
)


@click.group(cls=BrokerCommands)
def schemas() -> None:
    """Show, test, upload and delete the schemas of topics."""


@schemas.of("topic")
@click.option("-v", "--version", type=click.IntRange(min=0), help="Which one.  [default: the latest]")
def get(target: Target, topic: str, version: int | None) -> None:
    """Show one version of the schema of TOPIC as JSON."""
    with target.asked() as admin:
        found = admin.schemas.get(topic, version)
    click.echo(json.dumps(_described(found), indent=2))


@schemas.of("topic")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per version, with its text.")
def versions(target: Target, topic: str, as_json: bool) -> None:
    """List the versions of the schema of TOPIC, and who registered them."""
    with target.asked() as admin:
        found = admin.schemas.versions(topic)
    for each in found:
        when = datetime.fromtimestamp(each.registered_ms / 1000, timezone.utc)
        line = f"{each.version}  {each.schema.type}  {when:%Y-%m-%d %H:%M:%S} UTC  {each.registered_by}"
        write_line(json.dumps(_described(each)) if as_json else line)


@schemas.of("topic")
@_file
@_kind
def upload(target: Target, topic: str, file: IO[str], kind: str) -> None:
    """Register the schema in FILE, or standard input, as the next version of TOPIC.

    FILE has a definition, or a JSON object with the fields type, schema and properties.
    """
    schema = _read(file, kind)
    with target.asked() as admin:
        version = admin.schemas.upload(topic, schema)
    write_line(f"version {version}")


@schemas.of("topic")
@_file
@_kind
def test(target: Target, topic: str, file: IO[str], kind: str) -> None:
    """Say whether TOPIC would take the schema in FILE, and why not.

    It ends with 1 if not.
    """
    schema = _read(file, kind)
    with target.asked() as admin:
        found = admin.schemas.test(topic, schema)
    if not found.is_compatible:
        write_line(f"refused by the strategy {found.strategy}: {found.reason}")
        raise click.exceptions.Exit(1)
    known = "" if found.version is None else f"; it is version {found.version}"
    write_line(f"fits by the strategy {found.strategy}{known}")


@schemas.of("topic")
@click.option("-f", "--force", is_flag=True, help="With the texts, by which old messages are read.")
def delete(target: Target, topic: str, force: bool) -> None:
    """Delete the schema of TOPIC, so that any other may follow."""
    with target.asked() as admin:
        number = admin.schemas.delete(topic, force)
    if number is None:
        say(f"{topic} has no schema")
    else:
        write_line(f"deleted, as version {number}")


def _described(found: SchemaVersion) -> dict[str, Any]:
    """The fields of a version, named as in Pulsar's REST interface."""
    try:
        definition = json.loads(found.schema.text)
    except ValueError:
        definition = found.schema.text
    return {
        "version": found.version,
        "type": found.schema.type,
        "timestamp": found.registered_ms,
        "registeredBy": found.registered_by,
        "schema": definition,
        "properties": dict(found.schema.properties),
    }


def _read(file: IO[str], kind: str) -> TopicSchema:
    text = file.read()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return TopicSchema(kind, text)
    if not (isinstance(found, dict) and "schema" in found):
        return TopicSchema(kind, text)
    given, properties = found["schema"], found.get("properties", {})
    if not isinstance(properties, dict):
        raise InvalidConfiguration(f"the properties in the file are {properties!r:.50}: give an object")
    return TopicSchema(
        str(found.get("type", kind)), given if isinstance(given, str) else json.dumps(given), properties
    )
