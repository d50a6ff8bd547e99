"""The base of all enums that users see."""

from __future__ import annotations

from enum import Enum, IntEnum


class ApiEnum(IntEnum):
    """An int that prints as its name on every Python.

    The official client's enums do the same.
    """

    __str__ = Enum.__str__

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)
