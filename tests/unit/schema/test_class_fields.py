from __future__ import annotations

import json
import pickle
import uuid
from dataclasses import KW_ONLY, dataclass, field
from datetime import date, datetime, timezone
from enum import Enum
from typing import Annotated, Any, ClassVar, Optional

import pydantic
import pytest
from packaging.version import Version
from ray import cloudpickle

from pulsar_ray.schema import ArrowSchema, AvroSchema, Integer, JsonSchema

by_value: Any = cloudpickle.dumps
"""Pickles a class that no module has as Ray does it: by value."""


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


@pytest.mark.parametrize("value", [READING, MODEL, Tree(1, [Tree(2)])])
@pytest.mark.parametrize("make", [JsonSchema, AvroSchema])
def test_schemas_can_be_pickled(make: Any, value: object) -> None:
    schema = make(type(value))
    assert pickle.loads(pickle.dumps(schema)).decode(schema.encode(value)) == value


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema, ArrowSchema])
def test_a_class_that_came_by_value_has_the_same_schema(make: Any) -> None:
    @dataclass
    class Local:
        name: str
        tags: list[str] = field(default_factory=list)
        size: int = 3

    text = make(Local).schema_info().schema()
    assert make(pickle.loads(by_value(Local))).schema_info().schema() == text


def test_a_pickled_schema_knows_which_fields_have_defaults() -> None:
    @dataclass
    class Local:
        name: str
        note: str | None
        key: uuid.UUID = field(default_factory=uuid.uuid4)

    kind, schema = pickle.loads(by_value((Local, JsonSchema(Local))))
    key = uuid.uuid4()
    assert schema.decode(b'{"name": "a", "key": "%s"}' % str(key).encode()) == kind("a", None, key)
    with pytest.raises(TypeError, match="Field 'name' of Local is missing, and has no default"):
        schema.decode(b"{}")


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema, ArrowSchema])
def test_a_field_that_a_writer_lacked_has_its_default_though_it_may_be_none(make: Any) -> None:
    old: Any = dataclass(type("Item", (), {"__annotations__": {"x": int}}))
    fields = {"x": int, "y": str | None, "z": int}
    new: Any = dataclass(type("Item", (), {"__annotations__": fields, "y": "new", "z": 7}))
    reading = make(new).reading(make(old).registered())
    assert reading(make(old).encode(old(1))) == new(1, "new", 7)
    assert make(new).decode(make(new).encode(new(1, None, 2))) == new(1, None, 2)


class _Choices(pydantic.BaseModel):
    value: int = pydantic.Field(
        validation_alias=pydantic.AliasChoices(pydantic.AliasPath("in", 0), "theValue")
    )


# By names alone from pydantic 2.11 on, by both before.
_BY_NAME: Any = (
    {"validate_by_name": True, "validate_by_alias": False}
    if Version(pydantic.VERSION) >= Version("2.11")
    else {"populate_by_name": True}
)


class _ByName(pydantic.BaseModel):
    model_config = _BY_NAME
    value: int = pydantic.Field(alias="theValue")


class _OfPath(pydantic.BaseModel):
    value: int = pydantic.Field(validation_alias=pydantic.AliasPath("in", 0))


@pytest.mark.parametrize("make", [JsonSchema, AvroSchema, ArrowSchema])
def test_models_come_back_whatever_their_fields_are_called_when_given(make: Any) -> None:
    for value in (_Choices.model_validate({"theValue": 5}), _ByName.model_validate({"value": 5})):
        schema = make(type(value))
        assert schema.decode(schema.encode(value)) == value
    with pytest.raises(TypeError, match=r"Field _OfPath\.value .*set validate_by_name"):
        make(_OfPath)


@dataclass
class _KeywordsOnly:
    name: str
    _: KW_ONLY
    size: int = 3
    cache: ClassVar[Unheard] = None  # type: ignore[name-defined]  # noqa: F821 - as if for type checkers alone


def test_hints_of_what_is_no_field_may_be_anything() -> None:
    value = _KeywordsOnly("n", size=4)
    for schema in (JsonSchema(_KeywordsOnly), AvroSchema(_KeywordsOnly), ArrowSchema(_KeywordsOnly)):
        assert schema.decode(schema.encode(value)) == value


def test_hints_that_are_known_elsewhere_only_are_refused() -> None:
    kind: Any = dataclass(type("Odd", (), {"__annotations__": {"x": "Unheard"}, "__module__": "__main__"}))
    for make in (JsonSchema, ArrowSchema):
        with pytest.raises(TypeError, match="The hints of Odd are text, and name 'Unheard' is not defined"):
            make(kind)
