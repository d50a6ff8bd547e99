"""The `schema` argument of producers, consumers and readers: a schema, or a class of values."""

from __future__ import annotations

from typing import Annotated, Any

from pulsar_ray.client.options.checks import check_type, is_class_of_values
from pulsar_ray.client.options.schema import Schema


def as_schema(given: Any) -> Any:
    """Return JSON of a dataclass or pydantic model; all else as it is."""
    if is_class_of_values(given) and not issubclass(given, Schema):
        from pulsar_ray.schema.schema import JsonSchema  # noqa: PLC0415 - only those who use classes need it

        return JsonSchema(given)
    return given


def check_schema(name: str, given: Any) -> None:
    """Allow schemas, and classes that stand for one."""
    if not isinstance(as_schema(given), Schema):
        check_type(name, given, Schema, "a Schema")


GivenSchema = Annotated[Any, check_schema]
"""A Schema once it is checked: before, it may be a class of values."""
