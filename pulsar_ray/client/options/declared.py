"""Declares an option in one line: name, type, check and default.

batching_max_messages: Annotated[int, number(2)] = 1000

A new option of a call is such a line, and a parameter of the public methods, where users' editors look for
it; a test compares them. Rules between several options stand beside the class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, get_origin, get_type_hints

from pulsar_ray.client.options.checks import (
    MAX_INT,
    MAX_LONG,
    check_callable,
    check_enum,
    check_flag,
    check_metadata,
    check_number,
    check_optional,
    check_optional_number,
    check_optional_text,
    check_properties,
    check_text,
    check_type,
)

Check = Callable[[str, Any], None]
"""check(name, value) raises ValueError, which names the option, for a value that is not allowed."""


def number(lowest: int, highest: int = MAX_LONG) -> Check:
    """Allow ints within the bounds."""
    return functools.partial(check_number, lowest=lowest, highest=highest)


def optional_number(lowest: int, highest: int = MAX_LONG) -> Check:
    """Allow ints within the bounds, and None."""
    return functools.partial(check_optional_number, lowest=lowest, highest=highest)


def member(kind: type[IntEnum]) -> Check:
    """Allow members of an enum."""
    return functools.partial(check_enum, kind=kind)


def instance(kind: type, expected: str) -> Check:
    """Allow instances of a class; errors call them `expected`."""
    return functools.partial(check_type, kind=kind, expected=expected)


def optional_instance(kind: type | tuple[type, ...], expected: str) -> Check:
    """Allow instances of a class or of several, and None; errors call them `expected`."""
    return functools.partial(check_optional, kind=kind, expected=expected)


def function(expected: str) -> Check:
    """Allow what can be called, and None; errors call it `expected`."""
    return functools.partial(check_callable, expected=expected)


Flag = Annotated[bool, check_flag]
Text = Annotated[str, check_text]
OptionalText = Annotated[str | None, check_optional_text]
Count = Annotated[int, number(0)]
Interval = Annotated[int, number(1)]
WaitMs = Annotated[int, number(0, MAX_INT)]
Properties = Annotated[dict[str, str] | None, check_properties]
Metadata = Annotated[dict[str, str] | None, check_metadata]


def check_each(options: Any) -> None:
    """Check each option by itself, in the order of the class.

    Raises the errors of the checks.
    """
    for name, check in checks_of(options.__class__):
        check(name, getattr(options, name))


@functools.cache
def checks_of(kind: type[Any]) -> tuple[tuple[str, Check], ...]:
    """The names and checks that an options class declares."""
    hints = get_type_hints(kind, include_extras=True)
    return tuple(
        (name, check)
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for check in hint.__metadata__
    )
