"""The parts of an actor that others ask over its handle, and by which methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pulsar_ray.errors import InvalidConfiguration

PartCalls = Mapping[str, Collection[str]]
"""Part -> the methods that others may call."""


def check_part_call(calls: PartCalls, actor: str, part: str, method: str) -> None:
    """Raise InvalidConfiguration for a call that there is not."""
    if part not in calls:
        raise InvalidConfiguration(f"a {actor} has no part {part!r:.100}, only {', '.join(calls)}")
    if method not in calls[part]:
        raise InvalidConfiguration(f"{part} of a {actor} has no call {method!r:.100}")
