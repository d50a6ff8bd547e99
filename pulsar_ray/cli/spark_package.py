"""Modules of the Spark package for commands that need them."""

from __future__ import annotations

import importlib
from typing import Any


def spark_module(name: str) -> Any:
    """Import a module of `pulsar_ray_spark`, which this package must do without.

    Raises SparkNotInstalled, which says what to install, if Spark is missing.
    """
    modules: Any = importlib.import_module("pulsar_ray_spark.lazy_modules")
    return modules.import_lazily(f"pulsar_ray_spark.{name}")
