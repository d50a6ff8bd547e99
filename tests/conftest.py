"""What every test runs under."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: no test asserts a time, hypothesis' own deadline included.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# They start whole brokers or clusters, on machines that may be busy. A second failure counts; a first one
# is shown as a rerun. Nothing below them gets a second try, and no broken promise does.
_SECOND_TRY = {"actors", "conformance", "docs", "faults", "spark"}
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("rerunfailures"):  # -p no:rerunfailures shows the first failure
        return
    for item in items:
        if item.path.relative_to(_HERE).parts[0] in _SECOND_TRY:
            item.add_marker(pytest.mark.flaky(reruns=1, rerun_except=["PromiseBroken"]))
