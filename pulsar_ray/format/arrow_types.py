"""Schemas of rows as text, and columns of one as those of another (ADR 0129)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

MAX_DEPTH: Final = 64
_SIMPLE: Final = {
    str(kind): kind
    for kind in (
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.uint8(),
        pa.uint16(),
        pa.uint32(),
        pa.uint64(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time32("ms"),
        pa.time64("us"),
        pa.time64("ns"),
        pa.duration("s"),
        pa.duration("ms"),
        pa.duration("us"),
        pa.duration("ns"),
    )
}
_TIMESTAMP: Final = re.compile(r"timestamp\[(s|ms|us|ns)(?:, tz=(.+))?\]\Z")
_DECIMAL: Final = re.compile(r"decimal(128|256)\((\d{1,3}), (-?\d{1,3})\)\Z")
_FIXED: Final = re.compile(r"fixed_size_binary\[(\d{1,9})\]\Z")
_LISTS: Final[dict[str, Callable[[Any], pa.DataType]]] = {"list": pa.list_, "large_list": pa.large_list}


def schema_text(schema: pa.Schema) -> str:
    """Return the text of a schema, one for all that have the same columns.

    Metadata are no part of it. Raises ValueError, which names the column, for types that no topic has.
    """
    check_names(schema, "")
    return json.dumps({"fields": [_field_form(field, "", 0) for field in schema]}, separators=(",", ":"))


def schema_of(text: str) -> pa.Schema:
    """Return the schema that a text describes.

    Raises ValueError, which names the place, for one that is none.
    """
    form = json.loads(text)
    fields = form.get("fields") if isinstance(form, dict) else None
    if not isinstance(fields, list) or not fields:
        raise ValueError("it has no list of fields")
    schema = pa.schema([_field_of(each, "", 0) for each in fields])
    check_names(schema, "")
    return schema


def check_names(fields: Any, path: str) -> None:
    """Raise ValueError for a name that is there twice."""
    names = [field.name for field in fields]
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise ValueError(f"{_at(path)}the name {twice!r:.80} is there twice")


def _field_form(field: pa.Field, path: str, depth: int) -> dict[str, Any]:
    return _part_form(field, joined(path, field.name), depth)


def _part_form(field: pa.Field, place: str, depth: int) -> dict[str, Any]:
    return {"name": field.name, "type": _type_form(field.type, place, depth), "nullable": field.nullable}


def _type_form(kind: pa.DataType, path: str, depth: int) -> Any:  # noqa: PLR0911 - one for each kind of type
    if depth > MAX_DEPTH:
        raise ValueError(f"{_at(path)}types are nested deeper than {MAX_DEPTH}")
    text = str(kind)
    if _SIMPLE.get(text) == kind or pa.types.is_timestamp(kind) or pa.types.is_fixed_size_binary(kind):
        return text
    if pa.types.is_decimal(kind) and _DECIMAL.match(text):
        return text
    if pa.types.is_dictionary(kind):
        form = {"type": "dictionary", "values": _type_form(kind.value_type, path, depth + 1)}
        return {**form, "index": str(kind.index_type), "ordered": bool(kind.ordered)}
    if pa.types.is_struct(kind):
        check_names(kind, path)
        return {"type": "struct", "fields": [_field_form(field, path, depth + 1) for field in kind]}
    if pa.types.is_map(kind):
        parts = {"key": kind.key_field, "item": kind.item_field}
        forms = {name: _part_form(field, path + "{}", depth + 1) for name, field in parts.items()}
        return {"type": "map", **forms, "sorted": bool(kind.keys_sorted)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        item = _part_form(kind.value_field, path + "[]", depth + 1)
        if pa.types.is_fixed_size_list(kind):
            return {"type": "fixed_size_list", "item": item, "size": kind.list_size}
        return {"type": "list" if pa.types.is_list(kind) else "large_list", "item": item}
    raise ValueError(
        f"{_at(path)}columns of type {kind} are not sent: use a type of plain values, lists, maps, structs "
        "or dictionaries"
    )


def _field_of(form: Any, path: str, depth: int) -> pa.Field:
    if not isinstance(form, dict) or not isinstance(form.get("name"), str) or "type" not in form:
        raise ValueError(f"{_at(path)}{form!r:.80} is no field: it needs a name and a type")
    nullable = form.get("nullable", True)
    if not isinstance(nullable, bool):
        raise ValueError(f"{_at(path)}{nullable!r:.40} does not say whether there are nulls")
    return pa.field(form["name"], _type_of(form["type"], joined(path, form["name"]), depth), nullable)


def _type_of(form: Any, path: str, depth: int) -> pa.DataType:
    if depth > MAX_DEPTH:
        raise ValueError(f"{_at(path)}types are nested deeper than {MAX_DEPTH}")
    try:
        found = _simple_type(form) if isinstance(form, str) else _nested_type(form, path, depth)
    except (pa.ArrowException, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{_at(path)}{form!r:.80} is no type of a column: {error}") from None
    if found is None:
        raise ValueError(f"{_at(path)}{form!r:.80} is no type of a column")
    return found


def _simple_type(text: str) -> pa.DataType | None:
    if text in _SIMPLE:
        return _SIMPLE[text]
    if match := _TIMESTAMP.match(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.match(text):
        bits, precision, scale = (int(part) for part in match.groups())
        if not 0 < precision <= (38 if bits == 128 else 76):
            return None
        return pa.decimal128(precision, scale) if bits == 128 else pa.decimal256(precision, scale)
    if match := _FIXED.match(text):
        return pa.binary(int(match[1]))
    return None


def _nested_type(form: dict[str, Any], path: str, depth: int) -> pa.DataType | None:
    kind = form["type"]
    if kind == "struct":
        fields = [_field_of(each, path, depth + 1) for each in form["fields"]]
        check_names(fields, path)
        return pa.struct(fields)
    if kind in _LISTS:
        return _LISTS[kind](_field_of(form["item"], path + "[]", depth + 1))
    if kind == "fixed_size_list":
        return pa.list_(_field_of(form["item"], path + "[]", depth + 1), form["size"])
    if kind == "map":
        key, item = (_field_of(form[part], path + "{}", depth + 1) for part in ("key", "item"))
        return pa.map_(key, item, keys_sorted=form["sorted"])
    if kind == "dictionary":
        index, values = _simple_type(form["index"]), _type_of(form["values"], path, depth + 1)
        return pa.dictionary(index, values, form["ordered"])
    return None


def joined(path: str, name: str) -> str:
    """Return the place of a field in another."""
    return f"{path}.{name}" if path else name


def _at(path: str) -> str:
    return f"column {path!r}: " if path else ""


def plain_type(kind: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one for each kind of type
    """Return the type without dictionaries: a row alone has no use for them."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            plain_field(kind.key_field), plain_field(kind.item_field), keys_sorted=kind.keys_sorted
        )
    if pa.types.is_list(kind):
        return pa.list_(plain_field(kind.value_field))
    if pa.types.is_large_list(kind):
        return pa.large_list(plain_field(kind.value_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(plain_field(kind.value_field), kind.list_size)
    return kind


def plain_field(field: pa.Field) -> pa.Field:
    """Return the field without dictionaries."""
    return pa.field(field.name, plain_type(field.type), field.nullable)


def stored_field(field: pa.Field) -> pa.Field:
    """Return the field as rows that share an entry have it.

    A column may be a dictionary, but no part of one.
    """
    kind = field.type
    if pa.types.is_dictionary(kind):
        return pa.field(
            field.name,
            pa.dictionary(kind.index_type, plain_type(kind.value_type), kind.ordered),
            field.nullable,
        )
    return plain_field(field)


def fitted(array: pa.Array, target: pa.Field, path: str) -> pa.Array:
    """Return a column as one of another type.

    That is wider, with or without dictionaries, with more or fewer parts, of which missing ones are null.
    Raises ValueError, which names the place, for a value or type that does not fit.
    """
    kind = target.type
    if array.type.equals(kind):
        return array
    try:
        return _fitted(array, kind, path)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"column {path!r} of type {array.type} cannot be made {kind}: {error}") from None


def _fitted(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:  # noqa: PLR0911 - one for each kind of type
    source = array.type
    if pa.types.is_dictionary(kind):
        values = fitted(array, pa.field("", kind.value_type), path)
        encoded = values.dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(kind.index_type), encoded.dictionary, ordered=kind.ordered
        )
    if pa.types.is_dictionary(source):
        return fitted(array.dictionary_decode(), pa.field("", kind), path)
    if pa.types.is_struct(kind) and pa.types.is_struct(source):
        return _fitted_struct(array, kind, path)
    if pa.types.is_map(kind) and pa.types.is_map(source):
        keys, items = (
            fitted(column, field, path + "{}")
            for column, field in ((array.keys, kind.key_field), (array.items, kind.item_field))
        )
        return with_entries(array, kind, keys, items)
    if _is_list(source) and _is_list(kind):
        if pa.types.is_large_list(source) != pa.types.is_large_list(kind):
            array = array.cast(
                pa.large_list(source.value_field)
                if pa.types.is_large_list(kind)
                else pa.list_(source.value_field)
            )
        return with_children(array, kind, fitted(array.values, kind.value_field, path + "[]"), 2)
    if (
        pa.types.is_fixed_size_list(kind)
        and pa.types.is_fixed_size_list(source)
        and kind.list_size == source.list_size
    ):
        return with_children(array, kind, fitted(array.values, kind.value_field, path + "[]"), 1)
    return array.cast(kind)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def with_children(array: pa.Array, kind: pa.DataType, child: pa.Array, own_buffers: int) -> pa.Array:
    """Return the same lists with other items.

    `array.values` and the like are those of the whole memory. The lists have so many buffers of their own:
    which are null, and where each begins.
    """
    buffers = array.buffers()[:own_buffers]
    return pa.Array.from_buffers(kind, len(array), buffers, offset=array.offset, children=[child])


def with_entries(array: pa.MapArray, kind: pa.MapType, keys: pa.Array, items: pa.Array) -> pa.Array:
    """Return the same maps with other keys and items, those of the whole memory."""
    entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
    return with_children(array, kind, entries, 2)


def _fitted_struct(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    parts = {field.name: place for place, field in enumerate(array.type)}
    children = array.flatten()
    made = []
    for field in kind:
        place, found = joined(path, field.name), parts.get(field.name)
        if found is not None:
            made.append(fitted(children[found], field, place))
        elif field.nullable:
            made.append(pa.nulls(len(array), field.type))
        else:
            raise ValueError(f"column {place!r} is missing, and has no nulls")
    mask = array.is_null() if array.null_count else None
    if not made:
        return array.cast(kind)
    return pa.StructArray.from_arrays(made, fields=list(kind), mask=mask)


def null_places(array: pa.Array, field: pa.Field, path: str) -> Iterator[tuple[str, int]]:
    """Yield the places that have nulls and must have none, with their first row.

    It is -1 within lists.
    """
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary_decode()
    if not field.nullable and array.null_count:
        yield path, array.is_null().index(pa.scalar(True)).as_py()
    kind = field.type
    if not has_required(kind):
        return
    if pa.types.is_struct(kind):
        present = array.is_valid()
        rows = array if not array.null_count else array.filter(present)
        for place, part in enumerate(kind):
            found = null_places(rows.field(place), part, joined(path, part.name))
            yield from ((each, row if not array.null_count else -1) for each, row in found)
    elif pa.types.is_map(kind):
        maps = array if not array.null_count else array.filter(array.is_valid())
        # `items` are those of the whole memory, and maps are no lists to `flatten`.
        items = maps.items[maps.offsets[0].as_py() : maps.offsets[-1].as_py()]
        yield from ((each, -1) for each, _ in null_places(items, kind.item_field, path + "{}"))
    elif _is_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from ((each, -1) for each, _ in null_places(array.flatten(), kind.value_field, path + "[]"))


def has_required(kind: pa.DataType) -> bool:
    """Whether a part of values of a type must not be null."""
    if pa.types.is_struct(kind):
        return any(not part.nullable or has_required(part.type) for part in kind)
    if pa.types.is_map(kind):
        return not kind.item_field.nullable or has_required(kind.item_type)
    if _is_list(kind) or pa.types.is_fixed_size_list(kind):
        return not kind.value_field.nullable or has_required(kind.value_type)
    return False
