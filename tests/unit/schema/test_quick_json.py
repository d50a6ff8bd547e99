"""JSON of classes is the same, with the same errors, whether it is taken at once or by the codec."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timezone
from enum import Enum, IntEnum
from typing import Annotated, Any

import pydantic
import pytest

from pulsar_ray.schema import Float, Integer, JsonSchema


class Color(Enum):
    red = "r"
    blue = 2


class Level(IntEnum):
    low = 1


@dataclass
class Empty:
    pass


@dataclass
class One:
    only: str


@dataclass
class Plain:
    number: int
    text: str
    share: float
    is_on: bool
    tags: list[str]
    sizes: dict[str, int]
    small: Annotated[int, Integer()] = 1
    note: str | None = None
    marks: list[float] | None = None


@dataclass
class Nested:
    plain: Plain
    others: list[One]
    by_name: dict[str, One]
    color: Color
    colors: list[Color]
    raw: bytes
    raws: list[bytes]
    day: date
    seen: datetime | None
    rough: Annotated[float, Float()]
    empty: Empty
    rows: list[list[int]] = field(default_factory=list)
    inner: Nested | None = None


class Model(pydantic.BaseModel):
    name: str
    size: int = pydantic.Field(alias="theSize")
    share: float = 0.5


ODD: list[Any] = [
    *(None, True, 0, 1, -1, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 1.5, float("inf"), float("nan"), 1e39),
    *(
        "",
        "text",
        "\u00e4\u2028\ud800",
        "%s",
        b"",
        b"\xff",
        [],
        ["a"],
        ["a", None],
        [1],
        [1.5],
        [b"x"],
        [True],
    ),
    *([[1], [2]], {}, {"a": 1}, {"a": "b"}, {1: 1}, {"a": 1 << 63}, ("a",), object(), Color.red, Level.low),
    *(date(2020, 1, 2), datetime(2020, 1, 2, tzinfo=timezone.utc), datetime(2020, 1, 2)),  # noqa: DTZ001
    *(One("x"), One(3), [One("y")], {"k": One("z")}, Empty(), bytearray(b"x"), memoryview(b"y")),  # type: ignore[arg-type]
]


def _plain() -> Plain:
    return Plain(7, 'a "text" of 100 %', 2.5, False, ["x", "\u00e4"], {"a": 1, "%d": 2})


def _nested() -> Nested:
    seen = datetime(2020, 1, 2, 3, tzinfo=timezone.utc)
    inner = Nested(
        _plain(), [One("a")], {"b": One("c")}, Color.red, [Color.blue], b"\xff", [b"x"], date(2020, 1, 2),
        seen, 1.5, Empty(), [[1], []],
    )  # fmt: skip
    return Nested(_plain(), [], {}, Color.blue, [], b"", [], date(1960, 1, 2), None, 2.0, Empty(), [], inner)


def _by_codec(schema: JsonSchema) -> JsonSchema:
    schema._quick, schema._readers = None, {}
    return schema


def _outcome(work: Any, *args: Any) -> Any:
    try:
        return repr(work(*args))
    except Exception as error:  # noqa: BLE001 - both ways are to raise the same
        return type(error), str(error)


@pytest.mark.parametrize("java", [False, True])
@pytest.mark.parametrize(
    "make", [_plain, _nested, lambda: One("x"), Empty, lambda: Model(name="m", theSize=3)]
)
def test_both_ways_write_and_read_the_same(make: Any, java: bool) -> None:
    quick, codec = JsonSchema(type(make()), java=java), _by_codec(JsonSchema(type(make()), java=java))
    data = quick.encode(make())
    assert data == codec.encode(make())
    assert quick.decode(data) == codec.decode(data) == make()
    assert quick.reading(quick.registered())(data) == make()


@pytest.mark.parametrize("make", [_plain, _nested])
def test_values_of_any_type_end_alike(make: Any) -> None:
    quick, codec = JsonSchema(type(make())), _by_codec(JsonSchema(type(make())))
    refused = 0
    for name in vars(make()):
        for value in ODD:
            obj = make()
            setattr(obj, name, value)
            outcome = _outcome(quick.encode, obj)
            assert outcome == _outcome(codec.encode, obj), (name, value)
            refused += isinstance(outcome, tuple)
    assert refused > 100


def test_what_is_read_ends_alike() -> None:
    quick, codec = JsonSchema(Plain), _by_codec(JsonSchema(Plain))
    generator = random.Random(5)
    plain = asdict(_plain())
    odd = [value for value in ODD if isinstance(value, (type(None), bool, int, float, str, list, dict))]
    texts = [json.dumps(plain), json.dumps(plain) + " \n", " " + json.dumps(plain), json.dumps(plain) + "x"]
    texts += ["", "{", "{}", "[]", "3", "null", "{'a': 1}", json.dumps({**plain, "unknown": 1})]
    for name in plain:
        texts.append(json.dumps({key: value for key, value in plain.items() if key != name}))
        for value in odd:
            items = list({**plain, name: value}.items())
            generator.shuffle(items)
            try:
                texts.append(json.dumps(dict(items)))
            except TypeError:
                continue
    encodings = ["utf-8", "utf-8-sig", "utf-16-le", "utf-16", "utf-32"]
    data = [text.encode(encoding) for text in texts for encoding in encodings]
    data += [b"\xff", b'{"a\xff": 1}', b'{"text": "\xed\xa0\x80"}']
    for each in data:
        assert _outcome(quick.decode, each) == _outcome(codec.decode, each), each


def test_an_object_that_holds_itself_is_refused() -> None:
    obj = _nested()
    obj.inner = obj
    with pytest.raises(ValueError, match="Nested holds itself, or is nested too deep: send it in parts"):
        JsonSchema(Nested).encode(obj)


def test_what_a_class_raises_comes_once() -> None:
    made = []

    @dataclass
    class Checked:
        name: str

        def __post_init__(self) -> None:
            made.append(self.name)
            raise ValueError("not so")

    with pytest.raises(ValueError, match="not so"):
        JsonSchema(Checked).decode(b'{"name": "x"}')
    assert made == ["x"]
