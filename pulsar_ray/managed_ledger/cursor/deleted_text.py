"""A cursor's holes as Pulsar writes them."""

from __future__ import annotations

from itertools import islice

from pulsar_ray.model.position_ranges import PositionRanges

SHOWN_RANGES = 100


def deleted_text(deleted: PositionRanges) -> str:
    """The ranges with their lower end open and their upper end closed, as "[(3:1..3:4],(3:7..3:9]]"."""
    shown = [
        f"({ledger_id}:{first - 1}..{ledger_id}:{last}]"
        for ledger_id, first, last in islice(deleted, SHOWN_RANGES + 1)
    ]
    if len(shown) > SHOWN_RANGES:
        shown[-1] = "..."
    return f"[{','.join(shown)}]"
