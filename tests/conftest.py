"""What every test runs under."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from packaging.version import Version

from pulsar_ray import compiled

# A busy machine is no failure: no test asserts a time, hypothesis' own deadline included.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# They start whole brokers or clusters, on machines that may be busy for minutes. A third failure counts;
# those before are shown as reruns, with their tracebacks, and named at the end. A conformance test is tried
# again once, twice where it is left to chance, a unit test once if something runs beside it. No other
# unit test and no broken promise is tried again.
_TRIED_AGAIN = {"actors", "docs", "faults", "nodes", "spark"}
# A test file that imports one of these has something run beside it.
_CONCURRENT = {"asyncio", "multiprocessing", "socket", "subprocess", "threading"}
# All of it is left to `make test-all`; elsewhere a test says so itself.
_LONG = {"nodes"}
_LONG_TIMEOUT_S = 900
# What shares one Ray runs in one process, where tests are divided among several (`--dist loadgroup`).
_SHARE_RAY = {
    "spark": {
        "test_handover",
        "test_landing_deadline",
        "test_landing_stream",
        "test_lost_executors",
        "test_partitions",
        "test_pipelines",
        "test_programs_together",
        "test_read",
        "test_read_compacted",
        "test_session",
        "test_stream",
        "test_write",
        "test_value_form",
        "test_repeated_reads",
        "test_typed_reads",
    },
    "actors": {
        "test_administration",
        "test_broker",
        "test_compaction",
        "test_delayed_delivery",
        "test_forgotten_in_tasks",
        "test_health",
        "test_http",
        "test_leaving",
        "test_publishers",
        "test_queue",
        "test_ray_data",
        "test_readers",
        "test_several_topics",
    },
    # Each of them takes seconds, and starting a Ray and a broker as long again.
    "faults": {
        "test_all_at_once",
        "test_chunks",
        "test_dead_letters",
        "test_deduplication",
        "test_delayed_delivery",
        "test_first_start",
        "test_key_order",
        "test_leaders",
        "test_poison",
        "test_stopped_clients",
    },
}
# Where groups are divided among processes, the long ones begin; all processes then end at about one time.
# A process is given its next group when two tests of the former are left, however long they are.
_LONGEST_FIRST = (
    "spark",
    "actors",
    "faults/test_kill_points",
    "faults",
    "docs/test_readme",
    "docs/test_examples",
    "actors/test_embedded",
    "spark/test_demo",
    "faults/test_chaos",
    "spark/test_report_example",
    "actors/test_cli",
    "actors/test_metrics",
    "actors/test_sleeping",
    "faults/test_leases",
    "faults/test_takeover",
)
_HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so; programs that the tests start would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if Version(version("ray")) < Version("2.60"):
        # Older Rays do not wait for the processes that `ray.shutdown()` ends.
        config.addinivalue_line("filterwarnings", "ignore:subprocess .* is still running:ResourceWarning")


class FailuresAtOnce:
    """Names each failure when it happens: a run that is ended from outside never reaches its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome not in ("failed", "rerun"):
            return
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        crash = getattr(report.longrepr, "reprcrash", None)
        why = crash.message.partition("\n")[0] if crash else ""
        terminal.write_line(f"{report.outcome} in {report.when}: {report.nodeid}: {why[:200]}")


def pytest_report_header() -> str:
    return f"pulsar_ray: {compiled.describe()}"


# Before pytest-xdist's own, which notes the groups that it finds then.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    reruns = config.pluginmanager.hasplugin("rerunfailures")  # -p no:rerunfailures shows the first failure
    for item in items:
        suite = item.path.relative_to(_HERE).parts[0]
        tries = 0
        if suite in _TRIED_AGAIN or _is_left_to_chance(item):
            tries = 2
        elif suite == "conformance" or _CONCURRENT & vars(item.module).keys():  # type: ignore[attr-defined]
            tries = 1
        if reruns and tries:
            item.add_marker(pytest.mark.flaky(reruns=tries, rerun_except=["PromiseBroken"]))
        if suite in _LONG:
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S))
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    if hasattr(config, "workerinput"):
        order = {group: place for place, group in enumerate(_LONGEST_FIRST)}
        items.sort(key=lambda item: order.get(_group(item), len(order)))


def _is_left_to_chance(item: pytest.Item) -> bool:
    """Whether its actors leave all the time, its carrier is lost at any moment, or it races against a delay.

    No test can foresee all of that on a busy machine. `-p no:rerunfailures` shows what it does not.
    """
    callspec: Any = getattr(item, "callspec", None)
    has_chance = callspec is not None and callspec.params.get("transport") in ("sleepy", "lossy")
    return has_chance or "patience" in getattr(item, "fixturenames", ())


# Behind everything else: whoever sees only the end of a long output learns which tests it was.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    yield
    for outcome in ("rerun", "error", "failed"):
        names = dict.fromkeys(report.nodeid for report in terminalreporter.stats.get(outcome, ()))
        for name in names:
            terminalreporter.write_line(f"{outcome}: {name}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Not every pytest lets pytest-xdist name groups; without, each process starts a Ray for each module."""
    # Thousands of tests and their modules stay: no collection of garbage has to walk through them again.
    gc.collect()
    gc.freeze()
    config = session.config
    if hasattr(config, "workerinput") and config.getvalue("loadgroup"):
        scattered = [item.nodeid for item in session.items if "@" not in item.nodeid]
        assert not scattered, f"these tests have no group: {scattered[:3]}"


@pytest.fixture(scope="module", autouse=True)
def _freed_memory_is_returned() -> Iterator[None]:
    """Whole brokers come and go on many threads: glibc would keep gigabytes of theirs in the end."""
    yield
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _group(item: pytest.Item) -> str:
    suite, *_, file = item.path.relative_to(_HERE).with_suffix("").parts
    return suite if file in _SHARE_RAY.get(suite, ()) else f"{suite}/{file}"
