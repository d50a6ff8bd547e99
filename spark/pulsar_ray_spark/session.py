"""Start and stop the Spark session of this process, on the Ray cluster, through RayDP."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

import psutil
import ray
import raydp
import raydp.spark.ray_cluster as raydp_cluster
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from ray._private import auto_init_hook
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from raydp.spark.ray_cluster_master import RAYDP_SPARK_MASTER_SUFFIX

from pulsar_ray.data.reading.readers import READERS
from pulsar_ray.data.writing.publishers import PUBLISHERS
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.launch.connect import connect
from pulsar_ray.launch.listeners import is_loopback
from pulsar_ray.transport.this_ray import node_address, ray_job
from pulsar_ray_spark.errors import JavaNotFound, SparkAlreadyRunning, SparkNotStarted
from pulsar_ray_spark.handover import release_all
from pulsar_ray_spark.java import JDK_WHEEL, REQUIRED_JAVA, Java, find_java, remove_java_libraries
from pulsar_ray_spark.lost_executors import APP_MASTER_ACTOR, ExecutorReplacement
from pulsar_ray_spark.reading import prepare_reads
from pulsar_ray_spark.running import check_session, runs
from pulsar_ray_spark.session_settings import AskedSettings, SessionSettings, path_with

_log = logging.getLogger(__name__)


class _Started(NamedTuple):
    """The session of this process."""

    spark: SparkSession
    settings: SessionSettings | None
    """None: it was given to `start`, and is not ended here."""
    ray_job: str
    replacement: ExecutorReplacement | None = None
    """None: the session's executors are not ours to replace."""


_started: _Started | None = None


def start(
    app_name: str | None = None,
    *,
    spark: SparkSession | None = None,
    num_executors: int | None = None,
    executor_cores: int | None = None,
    executor_memory: str | int | None = None,
    start_timeout_s: float = 120.0,
    conf: Mapping[str, str] | None = None,
    service_url: str = "auto",
    data_dir: str | None = None,
) -> SparkSession:
    """Start Spark on this process's Ray cluster, or return the session that runs.

    A process that is on no Ray joins one first, as `Client(service_url, data_dir=data_dir)` does, and stays
    on it. One executor of one core and 1 GiB is the default. Each takes `executor_cores` CPUs from Ray;
    `spark.ray.raydp_spark_executor.actor.resource.cpu` lowers that, and the broker needs none. `conf` has
    Spark's own keys (`{"spark.sql.shuffle.partitions": "8"}`), which win over the defaults here. Python
    workers run on this interpreter, and Java 17 is found or is the one of the extra `[spark]`. Returns once
    executors are there.

    There is one session in a process. Called again, as by a notebook's cell, this returns it, unless other
    settings are given than it has; `app_name` is a label and does not count. `spark` is a session that
    somebody else started with RayDP: it is checked and returned, and `stop` leaves it running.

    Raises JavaNotFound, SparkAlreadyRunning (also if another program has one in this Ray namespace),
    SparkNotUsable or SparkStopped for a wrong `spark`, InvalidConfiguration, or
    SparkNotStarted if no executor came up within `start_timeout_s` seconds; after an error nothing is left
    running.
    """
    asked = AskedSettings(app_name, num_executors, executor_cores, executor_memory, conf)
    asked.check()
    if spark is not None:
        return _adopt(spark, asked)
    if (running := _running_session(asked)) is not None:
        return running
    return _start(asked.complete(), start_timeout_s, service_url, data_dir)


def stop() -> None:
    """Stop the session of `start`, and hand back its DataFrames' blocks.

    Its executors, its actors and its JVM have ended then, and Ray has their CPUs again. A session that was
    given to `start` goes on, and so does one that `start` has never seen. Does nothing without a session.
    """
    global _started
    started, _started = _started, None
    if started is not None and started.replacement is not None:
        started.replacement.stop()
    release_all()
    READERS.close()
    PUBLISHERS.close()
    if _is_of_another(started):
        return
    try:
        with _no_new_ray():
            raydp.stop_spark()
    except Exception:  # of RayDP, Ray and py4j, whatever they make of a Ray or a JVM that is gone
        # With another Ray than the session's nothing of it is left to end but its JVM.
        if started is None or (runs(started.spark) and ray.is_initialized() and started.ray_job == ray_job()):
            raise
        _forget(started.spark.sparkContext)
    finally:
        _shut_jvm()


@contextmanager
def _no_new_ray() -> Iterator[None]:
    """Keep Ray from starting by itself.

    RayDP calls its master also once the process has left Ray.
    """
    allowed = auto_init_hook.enable_auto_connect
    auto_init_hook.enable_auto_connect = False
    try:
        yield
    finally:
        auto_init_hook.enable_auto_connect = allowed


def _is_of_another(started: _Started | None) -> bool:
    """Whether somebody else started the session that runs."""
    if started is None:
        return SparkContext._active_spark_context is not None  # noqa: SLF001 - there is no public way to ask
    return started.settings is None


def _forget(context: SparkContext) -> None:
    """Have pyspark forget a context whose JVM was killed."""
    with suppress(Py4JError, OSError):
        context.stop()
    # The first call ended at the JVM that does not answer, the second one knows of none.
    context.stop()


def _adopt(spark: SparkSession, asked: AskedSettings) -> SparkSession:
    global _started  # noqa: PLW0603
    if not asked.is_empty():
        raise InvalidConfiguration("a session that runs keeps its settings: give spark=... alone")
    check_session(spark)
    if _started is None or _started.spark.sparkContext is not spark.sparkContext:
        _started = _Started(spark, None, ray_job())
    return spark


def _running_session(asked: AskedSettings) -> SparkSession | None:
    """The session to use again; None if there is none.

    One that was stopped otherwise is cleared away. Raises SparkAlreadyRunning for another one.
    """
    active: object = SparkContext._active_spark_context  # noqa: SLF001 - there is no public way to ask
    if _started is not None and not runs(_started.spark) and active in (None, _started.spark.sparkContext):
        stop()
        return None
    if active is None:
        return None
    if _started is None or active is not _started.spark.sparkContext:
        raise SparkAlreadyRunning(
            "a Spark session runs in this process that pulsar_ray_spark did not start: give it, as "
            "start(spark=SparkSession.getActiveSession()), or stop it first"
        )
    if _started.ray_job != ray_job():
        raise SparkAlreadyRunning(
            "the Spark session of this process is on a Ray that the process has left: stop it first, by "
            "pulsar_ray_spark.stop()"
        )
    if _started.settings is None:
        differences = [] if asked.is_empty() else ["it was given to start(spark=...)"]
    else:
        differences = _started.settings.differences(asked)
    if differences:
        raise SparkAlreadyRunning(
            f"the Spark session that runs has other settings ({'; '.join(differences)}): leave them out to "
            "use it, or stop it first, by pulsar_ray_spark.stop()"
        )
    return _started.spark


def _start(
    settings: SessionSettings, start_timeout_s: float, service_url: str, data_dir: str | None
) -> SparkSession:
    global _started  # noqa: PLW0603
    java = find_java()
    python = settings.conf.get("spark.pyspark.python", sys.executable)
    with _environment(java, python):
        if not ray.is_initialized():
            connect(service_url, data_dir=data_dir, config_file=None, settings={})
        _check_java_workers()
        _shut_jvm()
        with _placed_master(java), _page_address(), _naming_another_session():
            spark: SparkSession = raydp.init_spark(
                settings.app_name,
                settings.num_executors,
                settings.executor_cores,
                settings.executor_memory,
                configs=settings.configuration(java, python),
            )
    _started = _Started(spark, settings, ray_job())
    try:
        # Now that driver and app master have loaded theirs, so that nothing stays even if they are killed.
        remove_java_libraries()
        prepare_reads(spark)
        _await_executors(spark, settings.num_executors, settings.executor_cores, start_timeout_s)
        # Asked of the session, since a file of Spark's may say so too.
        if spark.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") != "true":
            _started = _started._replace(replacement=ExecutorReplacement(spark, settings.num_executors))
    except BaseException:
        stop()
        raise
    return spark


def _environment(java: Java, python: str) -> AbstractContextManager[None]:
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
    return _variables(wanted)


def _page_address() -> AbstractContextManager[None]:
    """Keep Spark's web page to the loopback interface where Ray keeps to that.

    Anybody may read the page. Spark binds it to all interfaces otherwise, whatever its other ports are bound
    to.
    """
    address = node_address()
    is_kept = is_loopback(address) and "SPARK_LOCAL_IP" not in os.environ
    return _variables({"SPARK_LOCAL_IP": address} if is_kept else {})


@contextmanager
def _naming_another_session() -> Iterator[None]:
    """Raise SparkAlreadyRunning where RayDP finds its names taken.

    It has one app master for each namespace of Ray, whatever the names of the applications.
    """
    try:
        yield
    except Exception as error:
        # Ray and RayDP's JVM have types of their own for this, and both name the actor.
        said = str(error)
        if not (APP_MASTER_ACTOR in said or (f"{RAYDP_SPARK_MASTER_SUFFIX} " in said and "taken" in said)):
            raise
        raise SparkAlreadyRunning(
            f"another program, or another process of this one, has a Spark session in the Ray namespace "
            f"{ray.get_runtime_context().namespace!r}, where RayDP allows only one: stop it, or join Ray "
            "with another namespace, or with none, as Client() does: each program has one of its own then"
        ) from error


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
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
        runtime_env={"env_vars": {"PATH": path_with(java)}},
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
