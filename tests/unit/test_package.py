from __future__ import annotations

import importlib
import subprocess
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


@pytest.mark.parametrize("actor", ["topic_partition", "subscription_dispatcher"])
def test_an_actor_starts_without_what_it_may_never_need(actor: str) -> None:
    # Parts of other actors, of topics that few have, of tools; codecs; what an error's advice takes.
    heavy = (
        *("numpy", "pyarrow", "pandas", "pyspark", "click", "rich", "sqlite3", "http", "yaml"),
        *("lz4", "snappy", "zstandard", "prometheus_client", "opentelemetry"),
        *(f"pulsar_ray.{layer}" for layer in ("client", "admin", "asyncio", "cli", "data", "launch")),
        *(f"pulsar_ray.{layer}" for layer in ("maintenance", "monitoring", "testing", "broker.catalog")),
        "pulsar_ray.broker.partition.non_persistent",
        "pulsar_ray.broker.subscription.non_persistent",
        "pulsar_ray.broker.health",
    )
    code = (
        "import ray, sys\n"
        "before = set(sys.modules)\n"
        f"import pulsar_ray.actors.{actor}\n"
        f"print(*sorted(set({heavy!r}) & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    # In a checkout it looks whether what is compiled is of these sources.
    assert set(done.stdout.split()) <= {"pulsar_ray.compiled"}


def test_a_client_loads_nothing_of_the_broker_that_it_does_not_need() -> None:
    code = (
        "import sys, pulsar_ray.client.client, pulsar_ray.launch.connect;"
        "print(*sorted(m for m in sys.modules if m.startswith(('pulsar_ray.actors', 'pulsar_ray.broker.s'"
        ", 'pulsar_ray.broker.p'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", ["pulsar_ray", "pulsar_ray.data"])
def test_a_star_gives_what_is_only_imported_when_it_is_used(package: str) -> None:
    code = (
        f"import sys\n"
        f"from {package} import *\n"
        f"import {package}; package = sys.modules['{package}']\n"
        "print(*sorted(name for name in package.__all__ if name not in globals()))\n"
        "print(*package.__all__)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    missing, given = done.stdout.splitlines()
    assert missing == ""
    wanted = {
        "pulsar_ray": {
            "Client",
            "ConsumerType",
            "MessageId",
            "Admin",
            "PulsarException",
            "Timeout",
            "schema",
        },
        "pulsar_ray.data": {"read", "write"},
    }
    assert wanted[package] <= set(given.split())


def test_importing_the_package_alone_loads_nothing_of_it() -> None:
    code = "import sys, pulsar_ray; print(*sorted(m for m in sys.modules if m.startswith('pulsar_ray.')))"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    # In a checkout it looks whether what is compiled is of these sources.
    assert set(done.stdout.split()) <= {"pulsar_ray.compiled"}
