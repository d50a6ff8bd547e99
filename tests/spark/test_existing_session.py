"""Sessions that cannot be used, as far as no Spark is needed; `test_session.py` has one that can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from pulsar_ray_spark import read, read_stream, write
from pulsar_ray_spark import session as session_module
from pulsar_ray_spark.errors import SparkNotUsable, SparkStopped
from pulsar_ray_spark.running import check_session


def session_of(java_context: Any, master: str = "ray://10.0.0.1:7077") -> SparkSession:
    """A session whose context is in this state."""
    session = SparkSession.__new__(SparkSession)
    session._sc = SimpleNamespace(_jsc=java_context, master=master, appName="gone")  # type: ignore[assignment]
    return session


@pytest.fixture(autouse=True)
def no_active_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)


def running(session: SparkSession) -> SparkSession:
    """Let the session's context be the one of this process, as that of a running session is."""
    SparkContext._active_spark_context = session.sparkContext
    return session


def java_context(*, stopped: bool) -> Any:
    return SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped))


def no_answer() -> Any:
    raise Py4JNetworkError("no answer")


def test_a_session_that_another_has_followed_says_so() -> None:
    with pytest.raises(SparkStopped, match=r"was stopped.*start"):
        check_session(session_of(None))


@pytest.mark.parametrize("context", [java_context(stopped=True), SimpleNamespace(sc=no_answer)])
def test_a_session_whose_jvm_has_ended_says_so(context: Any) -> None:
    with pytest.raises(SparkStopped, match=r"was stopped.*start"):
        check_session(running(session_of(context)))


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn"])
def test_a_session_elsewhere_cannot_read_blocks(master: str) -> None:
    with pytest.raises(SparkNotUsable, match=r"executors cannot read Ray's blocks.*init_spark"):
        check_session(running(session_of(java_context(stopped=False), master)))


def test_reads_streams_and_writes_say_so_too() -> None:
    session = running(session_of(java_context(stopped=False), "local[2]"))
    stream = read_stream(session, "t", name="q").foreach_batch(lambda frame, _: frame)
    for use in (lambda: read(session, "t"), stream.start, lambda: write(DataFrame(Mock(), session), "t")):
        with pytest.raises(SparkNotUsable, match=r"runs on local\[2\]"):
            use()
    with pytest.raises(
        SparkNotUsable, match=r"a builtins\.str cannot read Ray's blocks: give the SparkSession"
    ):
        read("t", session)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, "spark", object()])
def test_something_else_is_named(wrong: object) -> None:
    with pytest.raises(SparkNotUsable, match=f"a builtins.{type(wrong).__name__} cannot"):
        check_session(wrong)


def test_a_session_of_a_ray_that_was_left_says_so() -> None:
    with pytest.raises(SparkNotUsable, match="has left the Ray that Spark's application 'gone' runs on"):
        check_session(running(session_of(java_context(stopped=False))))


def test_stop_leaves_a_session_that_somebody_else_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        pytest.fail("the session of somebody else was ended")

    for name in ("release_all", "READERS", "PUBLISHERS"):
        monkeypatch.setattr(session_module, name, Mock())
    monkeypatch.setattr(session_module, "_started", None)
    monkeypatch.setattr(session_module, "_shut_jvm", refuse)
    monkeypatch.setattr("raydp.stop_spark", refuse)
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    session_module.stop()
