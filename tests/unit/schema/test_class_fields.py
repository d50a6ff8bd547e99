from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from enum import Enum
from typing import Annotated, Any, Optional

import pydantic
import pytest

from pulsar_ray.schema import AvroSchema, Integer, JsonSchema


class Unit(Enum):
    celsius = "C"
    kelvin = "K"


@dataclass
class Place:
    city: str
    at: tuple[float, float] = field(default=(0.0, 0.0), init=False)


@dataclass
class Reading:
    sensor: str
    value: float
    count: Annotated[int, Integer()] = 1
    unit: Unit = Unit.celsius
    place: Optional[Place] = None  # noqa: UP045 - both ways to write it
    raw: bytes = b"\xff"
    tags: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    seen: datetime | None = None
    day: date | None = None
    key: uuid.UUID = field(default_factory=uuid.uuid4)
    note: str | None = "none"


class Model(pydantic.BaseModel):
    name: str
    size: int = 3
    inner: Place | None = None
    camel: str = pydantic.Field(default="x", alias="camelCase")


READING = Reading(
    "s1",
    2.5,
    unit=Unit.kelvin,
    place=Place("Bern"),
    tags=["a"],
    limits={"max": 9},
    seen=datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
    day=date(1960, 1, 1),
)
MODEL = Model(name="m", inner=Place("Bern"), camelCase="y")


@pytest.mark.parametrize("value", [READING, MODEL])
@pytest.mark.parametrize("schema", [JsonSchema, AvroSchema])
def test_values_come_back(schema: Any, value: object) -> None:
    own = schema(type(value))
    assert own.decode(own.encode(value)) == value


def test_the_definition_has_what_evolution_needs() -> None:
    definition = json.loads(AvroSchema(Reading).schema_info().schema())
    entries = {entry["name"]: entry for entry in definition["fields"]}
    assert "default" not in entries["sensor"]
    assert entries["value"]["type"] == "double"
    assert entries["count"] == {"name": "count", "default": 1, "type": "int"}
    assert entries["unit"]["default"] == "celsius"
    assert entries["place"]["default"] is None
    assert entries["place"]["type"][0] == "null"
    assert entries["raw"]["default"] == "\xff"
    assert (entries["tags"]["default"], entries["limits"]["default"]) == ([], {})
    assert "default" not in entries["key"]
    assert entries["note"] == {"name": "note", "default": "none", "type": ["string", "null"]}
    assert AvroSchema(Reading).schema_info().schema() == JsonSchema(Reading).schema_info().schema()


def test_fields_that_a_writer_lacks_have_their_defaults() -> None:
    read = JsonSchema(Reading).decode(b'{"sensor": "s", "value": 1.0, "new": 5}')
    assert (read.count, read.unit, read.place, read.tags) == (1, Unit.celsius, None, [])
    with pytest.raises(TypeError, match="Field 'value' of Reading is missing, and has no default"):
        JsonSchema(Reading).decode(b'{"sensor": "s"}')
    assert JsonSchema(Model).decode(b'{"name": "m"}') == Model(name="m")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sensor": 5}, "for field 'sensor'"),
        ({"count": 2**31}, "field 'count'"),
        ({"tags": ["a", 5]}, "Array field tags .* item 1 is 5"),
        ({"place": Place(5)}, r"field 'place\.city'"),  # type: ignore[arg-type]
        ({"place": 5}, "for field 'place'"),
        ({"seen": datetime(2020, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the point
    ],
)
def test_wrong_values_name_the_field(changes: dict[str, Any], text: str) -> None:
    for schema in (JsonSchema(Reading), AvroSchema(Reading)):
        with pytest.raises((TypeError, ValueError), match=text):
            schema.encode(Reading(**{"sensor": "s", "value": 1.0, **changes}))


@pytest.mark.parametrize("hint", [Any, object, int | str, set[int], dict[int, str], tuple[int, ...]])
def test_types_without_avro_are_refused_where_the_schema_is_made(hint: Any) -> None:
    kind: Any = dataclass(type("Odd", (), {"__annotations__": {"x": hint}}))
    with pytest.raises(TypeError, match=r"Field Odd\.x"):
        JsonSchema(kind)


@dataclass
class Tree:
    x: int
    kids: list[Tree] = field(default_factory=list)


def test_recursive_classes() -> None:
    tree = Tree(1, [Tree(2), Tree(3, [Tree(4)])])
    for schema in (JsonSchema(Tree), AvroSchema(Tree)):
        assert schema.decode(schema.encode(tree)) == tree


def test_two_classes_of_one_name() -> None:
    other: Any = dataclass(type("Place", (), {"__annotations__": {"x": int}}))
    both: Any = dataclass(type("Both", (), {"__annotations__": {"a": Place, "b": other}}))
    with pytest.raises(TypeError, match="Two classes are called Place"):
        JsonSchema(both)
