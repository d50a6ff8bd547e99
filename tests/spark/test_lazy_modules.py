from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

import pulsar_ray_spark
from pulsar_ray_spark.errors import SparkNotInstalled
from pulsar_ray_spark.lazy_modules import import_lazily


@pytest.mark.parametrize("missing", ["raydp", "pyspark.sql"])
def test_a_missing_package_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **keywords: Any) -> Any:
        if name.startswith(missing):
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name, *args, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    for module in [name for name in sys.modules if name.startswith("pulsar_ray_spark.session")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(SparkNotInstalled, match=r"pip install 'pulsar-ray\[spark\]'"):
        _ = pulsar_ray_spark.start


def test_a_defect_stays_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_lazily("pulsar_ray_spark.no_such_module")
