"""The properties of subscriptions, and the one among them that the broker heeds."""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_ray.errors import InvalidConfiguration

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
