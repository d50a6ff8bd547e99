"""Start and stop the Spark session of this process, on the Ray cluster, through RayDP."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil
import ray
import raydp
import raydp.spark.ray_cluster as raydp_cluster
from pyspark import SparkContext
from pyspark.sql import SparkSession
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.errors import JavaNotFound, SparkAlreadyRunning, SparkNotStarted
from pulsar_ray_spark.handover import release_all
from pulsar_ray_spark.java import JAVA_OPTIONS, JDK_WHEEL, REQUIRED_JAVA, Java, find_java
from pulsar_ray_spark.java_libraries import remove_java_libraries
from pulsar_ray_spark.readers import READERS

_log = logging.getLogger(__name__)

# Driver, executors, and RayDP's app master.
_JAVA_OPTION_KEYS = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)


def start(
    app_name: str = "pulsar-ray",
    *,
    num_executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str | int = "1g",
    start_timeout_s: float = 120.0,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark on this process's Ray cluster.

    Without one, the cluster is started or joined as `ray.init()` does.

    `conf` has Spark's own keys (`{"spark.sql.shuffle.partitions": "8"}`), which win over the defaults
    here. Each executor takes `executor_cores` CPUs from Ray;
    `spark.ray.raydp_spark_executor.actor.resource.cpu` lowers that. Python workers run on this interpreter.
    Returns once executors are there.

    Raises JavaNotFound, SparkAlreadyRunning, InvalidConfiguration, or SparkNotStarted if no executor came up
    within `start_timeout_s` seconds; after an error nothing is left running.
    """
    conf = dict(conf or {})
    for key in conf:
        if "." not in key:
            raise InvalidConfiguration(
                f"{key!r} is no Spark setting; those have dotted names, as spark.sql.ansi.enabled"
            )
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no public way to ask
        raise SparkAlreadyRunning(
            "a Spark session runs in this process; use it (SparkSession.getActiveSession()) or stop it first"
        )
    java = find_java()
    python = conf.get("spark.pyspark.python", sys.executable)
    with _environment(java, python):
        if not ray.is_initialized():
            ray.init()
        _check_java_workers()
        _shut_jvm()
        with _placed_master(java):
            spark = _init_spark(app_name, num_executors, executor_cores, executor_memory, java, python, conf)
    # Now that driver and app master have loaded theirs, so that nothing stays even if they are killed.
    remove_java_libraries()
    _await_executors(spark, num_executors, executor_cores, start_timeout_s)
    return spark


def stop() -> None:
    """Stop the session of `start`, and hand back its DataFrames' blocks.

    Does nothing without a session.
    """
    release_all()
    READERS.close()
    try:
        raydp.stop_spark()
    finally:
        _shut_jvm()


def _init_spark(
    app_name: str,
    num_executors: int,
    executor_cores: int,
    executor_memory: str | int,
    java: Java,
    python: str,
    conf: Mapping[str, str],
) -> SparkSession:
    session: SparkSession = raydp.init_spark(
        app_name,
        num_executors,
        executor_cores,
        executor_memory,
        configs=_configuration(java, python, conf),
    )
    return session


def _configuration(java: Java, python: str, conf: Mapping[str, str]) -> dict[str, str]:
    settings = {
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": python,
        # The master only waits; with a whole CPU two cores would have one left.
        "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
        # RayDP takes the node that owns a block's reference (the driver's) for the node that has it.
        "spark.locality.wait": "0s",
        "spark.ui.showConsoleProgress": "false",
    }
    settings.update(conf)
    for key in _JAVA_OPTION_KEYS:
        settings[key] = f"{JAVA_OPTIONS} {conf.get(key, '')}".rstrip()
    # Ray starts the executors' JVMs for the app master's job, as the first `java` on the PATH of that job.
    settings[_JAVA_OPTION_KEYS[2]] += f" -Dray.job.runtime-env.env-vars.PATH={_path_with(java)}"
    return settings


def _path_with(java: Java) -> str:
    # Ray puts in the PATH of the node it happens on.
    return f"{java.bin_directory}{os.pathsep}${{PATH}}"


@contextmanager
def _environment(java: Java, python: str) -> Iterator[None]:
    """Set the environment of pyspark's launcher, and of a Ray started here.

    Their children read it too.
    """
    path = f"{java.bin_directory}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    wanted = {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PATH": path,
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _PlacedMaster:
    """RayDP's master actor class with options RayDP has no setting for."""

    def __init__(self, actor_class: Any, **options: Any) -> None:
        self._actor_class = actor_class
        self._options = options

    def options(self, **options: Any) -> Any:
        return self._actor_class.options(**options, **self._options)


@contextmanager
def _placed_master(java: Java) -> Iterator[None]:
    """Keep the master on this node and this Java.

    The master tells the driver's JVM the Ray sockets of its node.
    """
    original = raydp_cluster.RayDPSparkMaster
    raydp_cluster.RayDPSparkMaster = _PlacedMaster(
        original,
        scheduling_strategy=NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        ),
        runtime_env={"env_vars": {"PATH": _path_with(java)}},
    )
    try:
        yield
    finally:
        raydp_cluster.RayDPSparkMaster = original


def _check_java_workers() -> None:
    """Raise JavaNotFound if this node's raylet was started without a `java`.

    Such a raylet never starts JVMs.
    """
    node: Any = ray._private.worker._global_node  # noqa: SLF001
    socket = node.raylet_socket_name
    for process in psutil.process_iter(["name", "cmdline"]):
        arguments = process.info["cmdline"] or []
        if process.info["name"] != "raylet" or not any(socket in argument for argument in arguments):
            continue
        if "--java_worker_command=" in arguments:
            raise JavaNotFound(
                "Ray was started where no java was on the PATH, so it cannot start Spark's executors. "
                f"Put Java {REQUIRED_JAVA} on the PATH (`pip install {JDK_WHEEL}` brings one) and start Ray "
                "again"
            )


def _shut_jvm() -> None:
    """End pyspark's JVM, which outlives its session.

    It would keep the Java options and the environment of the first session, RAY_AUTH_MODE among them: against
    a Ray started since it could not authenticate.
    """
    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is None:
        return
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        # The JVM ends when its standard input does.
        process.stdin.close()
        process.wait()


def _await_executors(spark: SparkSession, num_executors: int, executor_cores: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while (running := _executor_count(spark)) < num_executors:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    if running == 0:
        resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
        stop()
        raise SparkNotStarted(
            f"no executor of {executor_cores} CPUs came up in {timeout_s:.0f} s; the cluster has "
            f"{resources.get('CPU', 0):g} CPUs and {resources.get('memory', 0) / 2**30:.1f} GiB free. Ask "
            "for less, free some, or lower spark.ray.raydp_spark_executor.actor.resource.cpu"
        )
    if running < num_executors:
        _log.warning(
            "%d of %d Spark executors are there; the others join when Ray has room", running, num_executors
        )


def _executor_count(spark: SparkSession) -> int:
    # The driver is in this map too.
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001
