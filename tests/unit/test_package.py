from __future__ import annotations

import importlib
import sys
from importlib.metadata import version

import pytest

import pulsar_ray


def test_version_is_the_one_of_the_distribution() -> None:
    assert pulsar_ray.__version__ == version("pulsar-ray")


def test_import_elsewhere_than_on_linux_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delitem(sys.modules, "pulsar_ray")
    with pytest.raises(ImportError, match=r"Linux only .*darwin.* container"):
        importlib.import_module("pulsar_ray")
