"""Declares an option in one line: name, type, check and default.

batching_max_messages: Annotated[int, number(2)] = 1000

A new option of a call is such a line: the public methods take their parameters from it, with `takes` (ADR
0120). Rules between several options stand beside the class.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast, get_origin, get_type_hints

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

P = ParamSpec("P")
Owner = TypeVar("Owner")
Options = TypeVar("Options")
Result = TypeVar("Result")

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


_NAMES = {"KW_ONLY": object}
"""For hints that are text: Python 3.10 takes no KW_ONLY, which is no type."""

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
    hints = get_type_hints(kind, localns=_NAMES, include_extras=True)
    return tuple(
        (name, check)
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for check in hint.__metadata__
    )


def takes(
    options: Callable[P, Options],
) -> Callable[[Callable[[Owner, Options], Result]], Callable[Concatenate[Owner, P], Result]]:
    """Give a method, which is called with an options object, the parameters of its class.

    They are its parameters for users' editors, type checkers, `help` and errors too. Nothing is checked.
    """

    def decorate(method: Callable[[Owner, Options], Result]) -> Callable[Concatenate[Owner, P], Result]:
        def made(*args: P.args, **kwargs: P.kwargs) -> Options:
            try:
                return options(*args, **kwargs)
            except TypeError as error:
                name = method.__qualname__
                raise TypeError(re.sub(r"^(\w+\.)?__init__\(\)", f"{name}()", str(error))) from None

        def call(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Result:
            return method(self, made(*args, **kwargs))

        async def call_on_loop(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return await cast(Any, method)(self, made(*args, **kwargs))

        taking: Any = call_on_loop if inspect.iscoroutinefunction(method) else call
        taking.__signature__ = _signature(options, method)
        return cast(Callable[Concatenate[Owner, P], Result], functools.update_wrapper(taking, method))

    return decorate


def _signature(options: Callable[..., Any], method: Callable[..., Any]) -> inspect.Signature:
    """The method's signature with the parameters of the options class, in readable types."""
    own = inspect.signature(method)
    hints = get_type_hints(options, localns=_NAMES)
    defaults = {
        field.name: field.default_factory()
        for field in dataclasses.fields(cast(Any, options))
        if field.default_factory is not dataclasses.MISSING
    }
    taken = [
        p.replace(annotation=hints[p.name], default=defaults.get(p.name, p.default))
        for p in inspect.signature(options).parameters.values()
    ]
    return own.replace(parameters=[next(iter(own.parameters.values())), *taken])
