"""numpy, imported when one of its names is first used.

To import it takes a tenth of a second of CPU, a sixth of an actor's start. Few actors need it for their first
message, and many never do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _OnDemand:
        """Looks each name up once."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module("numpy"), name)
            setattr(self, name, value)
            return value

    np = _OnDemand()
