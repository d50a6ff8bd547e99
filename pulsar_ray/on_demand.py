"""A module that is imported when one of its names is first used.

Few actors need such a one to start.
"""

from __future__ import annotations

import importlib
from typing import Any


class OnDemand:
    """Stands for a module and looks each name up once."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._module), name)
        setattr(self, name, value)
        return value
