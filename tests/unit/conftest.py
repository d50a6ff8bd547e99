"""Unit tests run without Ray: starting it is an error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest


def _refuse(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise AssertionError("a unit test called ray.init(); tests that need Ray belong in tests/actors")


def _ray_is_initialized() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make ray.init an error, without importing Ray; if the test imports it, check afterwards."""
    was_initialized = _ray_is_initialized()
    ray = sys.modules.get("ray")
    if ray is not None:
        monkeypatch.setattr(ray, "init", _refuse)
    yield
    assert was_initialized or not _ray_is_initialized(), "a unit test started Ray"
