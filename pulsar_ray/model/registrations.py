"""Limits on what clients make the broker keep, and the properties of subscriptions."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping

from pulsar_ray.errors import InvalidConfiguration, NotAllowedError

MAX_NAME_BYTES = 1024
"""Of the name of a producer, consumer or subscription, in UTF-8."""


def check_new_name(kind: str, name: str) -> None:
    """Raise InvalidConfiguration for a name that is too long or has control characters.

    Names that are stored already are not asked: they were given before there was this rule.
    """
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        raise InvalidConfiguration(
            f"the {kind} name {name!r:.100} has {size} bytes, at most {MAX_NAME_BYTES} are allowed: "
            "choose a shorter one"
        )
    if not name.isprintable() and any(unicodedata.category(sign) == "Cc" for sign in name):
        raise InvalidConfiguration(
            f"the {kind} name {name!r:.100} has control characters: choose one without"
        )


def kept_bytes(name: str, properties: Mapping[str, str] | None) -> int:
    """The bytes of a name and of properties' names and values, in UTF-8."""
    return _size(name) + _properties_bytes(properties or {})


def check_properties_size(kind: str, properties: Mapping[str, str] | None, limit: int) -> None:
    """Raise NotAllowedError for a set of properties above `max_properties_bytes`; 0: no limit."""
    size = _properties_bytes(properties or {})
    if 0 < limit < size:
        raise NotAllowedError(
            f"the {kind}'s properties have {size} bytes of names and values, and max_properties_bytes allows "
            f"{limit}: shorten them, or raise the setting"
        )


def check_sum(kind: str, new: int, others: Iterable[int], limit: int) -> None:
    """Raise NotAllowedError if names and properties of all are above a process's limit.

    0 stands for none.
    """
    if limit and (total := new + sum(others)) > limit:
        raise NotAllowedError(
            f"names and properties of the {kind} would have {total} bytes, and "
            f"max_properties_bytes_per_actor allows {limit}: close some, shorten properties, or raise the "
            "setting"
        )


def _properties_bytes(properties: Mapping[str, str]) -> int:
    return sum(_size(name) + _size(value) for name, value in properties.items())


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


STRICT_PROPERTY = "delayed-delivery-strict"
"""Overrides the topic's policy: "true" or "false"."""


def check_subscription_properties(properties: Mapping[str, str]) -> None:
    """Raise InvalidConfiguration for a switch that is neither on nor off."""
    strict = properties.get(STRICT_PROPERTY)
    if strict not in (None, "true", "false"):
        raise InvalidConfiguration(
            f"the subscription property {STRICT_PROPERTY} is {strict!r}: give 'true' or 'false', or drop it "
            "to have the topic's policy decide"
        )


def changed_properties(
    known: Mapping[str, str], given: Mapping[str, str], *, replace: bool
) -> dict[str, str]:
    """Return the properties after a change.

    Without `replace` those that are not given stay, and one that is given as "" goes.
    """
    if replace:
        return dict(given)
    return {name: value for name, value in {**known, **given}.items() if given.get(name) != ""}
