"""The forms of a value: in a program, in JSON, in Avro."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Reading:
    """How given or decoded values are taken."""

    keeps_unknown_out: bool = True
    """Names that no field has are left out; otherwise they are errors."""
    is_decoded: bool = True
    """The values come out of a message, where enums and bytes are something else."""
    names_first: bool = False
    """A text for an enum is its name rather than its value."""
    is_base64: bool = False
    """Bytes are in base64."""


@dataclass(frozen=True)
class Writing:
    """How values are written for one encoding."""

    enum_names: bool = False
    is_base64: bool = False
    bytes_as_text: bool = True


CONSTRUCTED: Final = Reading(keeps_unknown_out=False, is_decoded=False)
PYTHON_JSON: Final = Reading()
JAVA_JSON: Final = Reading(names_first=True, is_base64=True)
AVRO: Final = Reading(names_first=True)
WRITES_PYTHON_JSON: Final = Writing()
WRITES_JAVA_JSON: Final = Writing(enum_names=True, is_base64=True)
WRITES_AVRO: Final = Writing(enum_names=True, bytes_as_text=False)


def as_default(value: Any) -> Any:
    """Return a value as a default in an Avro schema, where bytes are characters."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, list):
        return [as_default(item) for item in value]
    if isinstance(value, dict):
        return {key: as_default(item) for key, item in value.items()}
    return value
