"""A setting's range, its Pulsar key, and how text becomes its value."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pulsar_ray.errors import InvalidConfiguration

SettingValue = bool | int | float | str
V = TypeVar("V", bool, int, float, str)

INTEGER_BITS = 64
"""With sign: what files, packets and float arithmetic bear."""
_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


def setting(
    default: V,
    doc: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    pulsar_key: str = "",
    is_secret: bool = False,
) -> V:
    """Declare a dataclass field that is a setting of its default's type.

    Give `pulsar_key` only where it is irregular. A text whose default is empty may be empty. A
    secret is in no text that stands for the settings.
    """
    metadata = {
        "doc": doc,
        "minimum": minimum,
        "maximum": maximum,
        "choices": tuple(choices),
        "pulsar_key": pulsar_key,
        "is_secret": is_secret,
    }
    value: V = dataclasses.field(default=default, metadata=metadata, repr=not is_secret)
    return value


def pulsar_key(field: dataclasses.Field[Any]) -> str:
    """The setting's name as Pulsar writes it: managed_ledger_x -> managedLedgerX."""
    irregular: str = field.metadata["pulsar_key"]
    return irregular or re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), field.name)


def default_of(field: dataclasses.Field[Any]) -> SettingValue:
    """The setting's default, which also fixes its type."""
    default: Any = field.default
    value: SettingValue = default
    return value


def checked(
    field: dataclasses.Field[Any], value: object, source: str = "", *, name: str = ""
) -> SettingValue:
    """`value` as the setting's type. Raises InvalidConfiguration with value, place and remedy.

    `name` is the one under which the value was given, if that is not the setting's.
    """
    kind = type(default_of(field))
    where = f"{name or field.name}{source}"
    if type(value) is int and value.bit_length() >= INTEGER_BITS:
        # Without the value: Python refuses to write one of some thousand digits.
        raise InvalidConfiguration(
            f"{where} is a number of {value.bit_length()} bits: give {_expected(field)}, "
            f"below 2 to the power of {INTEGER_BITS - 1}"
        )
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise InvalidConfiguration(f"{where} is {value!r}, a {type(value).__name__}: give {_expected(field)}")
    if not _is_in_range(field, value):
        raise InvalidConfiguration(f"{where} is {value!r}: give {_expected(field)}")
    return value


def parsed(field: dataclasses.Field[Any], text: str, source: str) -> SettingValue:
    """The value that `text`, of an environment variable, stands for. Raises InvalidConfiguration."""
    stripped = text.strip()
    kind = type(default_of(field))
    value: SettingValue = stripped
    try:
        if kind is bool:
            value = _boolean(stripped)
        elif kind is int:
            value = int(stripped)
        elif kind is float:
            value = float(stripped)
    except ValueError:
        message = f"{field.name}{source} is {text!r}: give {_expected(field)}"
        raise InvalidConfiguration(message) from None
    return checked(field, value, source)


def unknown_setting(name: str, known: Iterable[str], source: str) -> InvalidConfiguration:
    """The error for a name that is no setting; names the nearest one that is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "see pulsar_ray.config.Settings for all settings"
    return InvalidConfiguration(f"{name!r}{source} is no setting: {hint}")


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _is_in_range(field: dataclasses.Field[Any], value: Any) -> bool:
    minimum, maximum, choices = (field.metadata[name] for name in ("minimum", "maximum", "choices"))
    if choices:
        return value in choices
    if isinstance(value, str):
        return bool(value) or default_of(field) == ""
    return (
        math.isfinite(value)
        and (minimum is None or value >= minimum)
        and (maximum is None or value <= maximum)
    )


def _expected(field: dataclasses.Field[Any]) -> str:
    minimum, maximum, choices = (field.metadata[name] for name in ("minimum", "maximum", "choices"))
    if choices:
        return "one of " + ", ".join(choices)
    if isinstance(default_of(field), bool):
        return "true or false"
    if isinstance(default_of(field), str):
        return "a text that is not empty" if default_of(field) else "a text"
    text = "an integer" if isinstance(default_of(field), int) else "a number"
    if minimum is not None and maximum is not None:
        return f"{text} from {minimum} to {maximum}"
    if minimum is not None:
        return f"{text} of at least {minimum}"
    return text
