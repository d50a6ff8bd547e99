"""Marks the compiled classes that classes of Python may inherit (ADR 0125)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    # mypyc knows the decorator by this name. When a module runs it is gone, or does nothing.
    from mypy_extensions import mypyc_attr
else:
    C = TypeVar("C", bound=type)

    def mypyc_attr(**_attributes: bool) -> Callable[[C], C]:
        """Return a decorator that changes nothing."""
        return _unchanged

    def _unchanged(marked: C) -> C:
        return marked
