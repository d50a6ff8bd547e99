"""Which consumer owns which slots: what the three ways of dividing them have in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pulsar_ray.dispatch.key_shared.sticky_key import Slotting
from pulsar_ray.errors import ConsumerAssignError
from pulsar_ray.model.enums import KeySharedMode


@dataclass(frozen=True)
class KeySharedSpec:
    """How a consumer wants a Key_Shared subscription; `sticky_ranges` are inclusive pairs in 0..65535."""

    mode: KeySharedMode = KeySharedMode.AutoSplit
    allow_out_of_order_delivery: bool = False
    sticky_ranges: tuple[tuple[int, int], ...] = ()


DEFAULT_KEY_SHARED = KeySharedSpec()


def key_shared_spec(reported: Any) -> KeySharedSpec:
    """Read a client's request: (mode, allows out of order delivery, ranges), or None.

    None stands for the defaults.

    Raises ConsumerAssignError for anything else.
    """
    if reported is None:
        return DEFAULT_KEY_SHARED
    try:
        mode, allow_out_of_order_delivery, ranges = reported
        declared = tuple((first, last) for first, last in ranges)
        spec = KeySharedSpec(KeySharedMode(mode), bool(allow_out_of_order_delivery), declared)
    except (TypeError, ValueError) as error:
        raise ConsumerAssignError(f"{reported!r:.200} is no Key_Shared policy: {error}") from None
    if any(type(edge) is not int for pair in declared for edge in pair):
        raise ConsumerAssignError(f"sticky ranges {declared!r:.200} are not pairs of int")
    return spec


class Region(NamedTuple):
    """Slots first..last belong to a consumer."""

    first: int
    last: int
    consumer_id: int


class HashRegions(Protocol):
    """Divides the slots among consumers; the rest of them belong to nobody."""

    slotting: Slotting

    def add(self, consumer_id: int, name: str, spec: KeySharedSpec) -> None:
        """A consumer comes. Raises ConsumerAssignError, and then nothing has changed."""

    def remove(self, consumer_id: int) -> None:
        """A consumer goes."""

    def regions(self) -> list[Region]:
        """All regions, in order; neighbours have different owners."""


def joined(regions: Iterable[Region]) -> list[Region]:
    """Regions in order, with neighbours of one owner made one."""
    found: list[Region] = []
    for region in regions:
        if found and found[-1].consumer_id == region.consumer_id and found[-1].last + 1 == region.first:
            found[-1] = found[-1]._replace(last=region.last)
        else:
            found.append(region)
    return found
