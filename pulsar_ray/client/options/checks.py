"""Checks arguments of everything that users call.

A wrong type or range is a ValueError that says what is allowed.
"""

from __future__ import annotations

import dataclasses
import sys
import typing
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

E = TypeVar("E", bound=IntEnum)
MAX_METADATA_BYTES = 16_384
MAX_INT = 2**31 - 1
"""The highest int of the official client, for values handed to timers and packets."""
MAX_LONG = 2**63 - 1
MAX_SEQUENCE_ID = 2**63 - 2**40
"""The highest sequence id that users give: a trillion automatic ones fit behind it."""


def refuse(name: str, value: object, expected: str) -> ValueError:
    """The error to raise for an argument that is not what it must be."""
    return ValueError(f"Argument {name}={value!r:.200} must be {expected}")


def check_type(name: str, value: Any, kind: type | tuple[type, ...], expected: str) -> None:
    if not isinstance(value, kind):
        raise refuse(name, value, expected)


def check_optional(name: str, value: Any, kind: type | tuple[type, ...], expected: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise refuse(name, value, f"{expected} or None")


def check_text(name: str, value: Any) -> None:
    """Check a str that UTF-8 can hold.

    Texts go into packets, files, hashes and names of actors.
    """
    if not isinstance(value, str):
        raise refuse(name, value, "a str")
    if not is_utf8(value):
        raise refuse(name, value, "text that UTF-8 can hold, without lone surrogates")


def checked_names(name: str, values: Any) -> list[str]:
    """Return names as a list, each checked as by `check_text`.

    A text alone is no list of them.
    """
    if not isinstance(values, Iterable) or isinstance(values, (str, Mapping)):
        raise refuse(name, values, "a sequence of names")
    found = [*values]
    for value in found:
        check_text(name, value)
    return found


def check_optional_text(name: str, value: Any) -> None:
    """Check a text as `check_text`; None passes."""
    if value is not None:
        if not isinstance(value, str):
            raise refuse(name, value, "a str or None")
        check_text(name, value)


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold it, which it cannot with lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise refuse(name, value, "True or False")


def check_number(name: str, value: Any, lowest: int | None = None, highest: int = MAX_LONG) -> None:
    """Check an int within the bounds. A bool passes, as in the official client."""
    above = lowest is None or (isinstance(value, int) and value >= lowest)
    if not (isinstance(value, int) and above and value <= highest):
        says_highest = highest < MAX_LONG or (isinstance(value, int) and value > highest)
        bounds = [f"from {lowest}"] * (lowest is not None) + [f"up to {highest}"] * says_highest
        raise refuse(name, value, " ".join(["an int", *bounds]))


def check_optional_number(name: str, value: Any, lowest: int | None = None, highest: int = MAX_LONG) -> None:
    if value is not None:
        check_number(name, value, lowest, highest)


def check_seconds(name: str, value: Any) -> None:
    """Check an int or float above 0, within the time that a thread can wait."""
    if not isinstance(value, (int, float)) or not 0 < value <= MAX_INT:
        raise refuse(name, value, f"a number of seconds above 0, up to {MAX_INT}")


def check_enum(name: str, value: Any, kind: type[E]) -> None:
    """Check a member of the enum: plain ints are refused, as in the official client."""
    if not isinstance(value, kind):
        raise refuse(name, value, f"one of {', '.join(f'{kind.__name__}.{member.name}' for member in kind)}")


def check_callable(name: str, value: Any, expected: str) -> None:
    if value is not None and not callable(value):
        raise refuse(name, value, f"{expected} or None")


def check_properties(name: str, value: Any) -> None:
    """Check a mapping of str to str, or None."""
    if value is None:
        return
    if not isinstance(value, Mapping):
        raise refuse(name, value, "a dict of str to str or None")
    for key, item in value.items():
        if not isinstance(key, str) or not isinstance(item, str):
            raise refuse(f"{name}[{key!r:.100}]", item, "a str under a str key")
        if not (is_utf8(key) and is_utf8(item)):
            raise refuse(f"{name}[{key!r:.100}]", item, "text that UTF-8 can hold, without lone surrogates")


def check_metadata(name: str, value: Any) -> None:
    """Check properties that the broker shows in its stats: within 16 KiB."""
    check_properties(name, value)
    size = sum(len(text.encode()) for pair in (value or {}).items() for text in pair)
    if size > MAX_METADATA_BYTES:
        raise ValueError(
            f"{name} has {size} bytes of names and values: at most {MAX_METADATA_BYTES} are kept"
        )


def is_class(given: Any) -> bool:
    """Whether it is a class; Python 3.10 takes set[int] for one too."""
    return isinstance(given, type) and typing.get_origin(given) is None


def is_class_of_values(given: Any) -> bool:
    """Whether it is a dataclass or a pydantic model."""
    if not is_class(given):
        return False
    pydantic = sys.modules.get("pydantic")
    is_model = pydantic is not None and issubclass(given, pydantic.BaseModel)
    return is_model or dataclasses.is_dataclass(given)
