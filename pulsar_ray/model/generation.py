"""Which deliveries and acknowledgments are from before a subscription was sought or rewound.

One number that only rises while a dispatcher runs: seeks, which are durable, count in its upper half, and
what a dispatcher makes come again in order, which is forgotten with it, in its lower half.
"""

from __future__ import annotations

_SEEK_SHIFT = 32


def after_seeks(seeks: int) -> int:
    """The first generation after that many seeks."""
    return seeks << _SEEK_SHIFT


def has_rewound(generation: int) -> bool:
    """Whether messages came again in order since the last seek."""
    return generation & ((1 << _SEEK_SHIFT) - 1) != 0


def seeks_of(generation: int) -> int:
    """How many seeks a generation comes after."""
    return generation >> _SEEK_SHIFT
