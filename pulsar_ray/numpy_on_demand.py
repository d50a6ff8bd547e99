"""numpy, imported when one of its names is first used.

To import it takes a tenth of a second of CPU, a sixth of an actor's start. Few actors need it for their first
message, and many never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_ray.on_demand import OnDemand

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:
    np = OnDemand("numpy")
