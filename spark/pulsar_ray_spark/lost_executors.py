"""Replace the executors that a Spark session loses.

Ray starts a killed executor's actor again, but RayDP's app master has let go of the actor's handle by then:
the next garbage collection there ends the new executor, and nothing replaces that one. So the actor of a lost
executor is ended for good here, and the app master asked for another, whose handle it keeps (ADR 0089).
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any, Protocol

import ray
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from pulsar_ray.transport.this_ray import ray_job
from pulsar_ray_spark.executor_blocks import EXECUTOR_ACTOR, executors_among
from pulsar_ray_spark.running import runs

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
STOP_TIMEOUT_S = 10.0
ATTEMPTS = 200
"""How often one look may ask the app master for an executor."""
APP_MASTER_ACTOR = "RAY_APP_MASTER"


class Executors(Protocol):
    """The executors of a session, as Spark's driver and Ray see them. Ids are Spark's."""

    def registered(self) -> set[str]:
        """Return the ids of those that Spark gives tasks to."""

    def actors(self) -> set[str]:
        """Return the ids whose actors are there, if only starting."""

    def end_actor(self, executor_id: str) -> None:
        """End the actor for good."""

    def ask_for(self, total: int) -> None:
        """Ask for a total; the app master starts the difference to what it counts."""


class LostExecutors:
    """Find the executors that were lost, and have others started."""

    def __init__(self, executors: Executors, wanted: int) -> None:
        self._executors = executors
        self._wanted = wanted
        self._registered: set[str] = set()

    def look(self) -> None:
        """Replace those lost since the last look that ended well.

        Costs one call of Spark's driver while all are there.
        """
        registered = self._executors.registered()
        lost = self._registered - registered
        if lost or len(registered) < self._wanted:
            self._replace(registered, lost)
        self._registered = registered

    def _replace(self, registered: set[str], lost: set[str]) -> None:
        actors = self._executors.actors()
        # One that was killed before it registered keeps its handle. It registers under another id than its
        # actor's, or RayDP refuses it, and then its actor is not there any more.
        for executor_id in lost & actors:
            self._executors.end_actor(executor_id)
        if (missing := self._wanted - len(actors - lost)) > 0:
            started = self._start(missing, len(registered), actors)
            _log.warning("Spark executors were lost (%s): %d start", ", ".join(sorted(lost)), started)

    def _start(self, missing: int, registered: int, actors: set[str]) -> int:
        """Return how many start."""
        # The app master counts executors once they register. It may count more than the driver: one it has
        # not noticed the loss of, and for ever one that was killed while it registered.
        total, left = registered + missing, missing
        for _ in range(ATTEMPTS):
            self._executors.ask_for(total)
            started = self._executors.actors() - actors
            actors = actors | started
            left -= len(started)
            if left <= 0:
                break
            total = total - len(started) + left if started else total + 1
        return missing - left


class ExecutorReplacement:
    """A thread that looks for lost executors until the session ends.

    It ends by itself once the session was stopped or the process has left the session's Ray. It stops a
    session that can have no executors any more, since each action would wait for ever.
    """

    def __init__(self, spark: SparkSession, wanted: int) -> None:
        self._spark = spark
        self._job = ray_job()
        self._lost = LostExecutors(_SessionExecutors(spark), wanted)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lost-executors", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; a look under way is waited for, but not long."""
        self._stopped.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                if not (runs(self._spark) and ray.is_initialized() and ray_job() == self._job):
                    return
                self._lost.look()
            except AppMasterLost:
                _log.error("RayDP's app master died, and so do the executors: the Spark session is stopped")
                with suppress(Py4JError, OSError):
                    self._spark.sparkContext._jsc.sc().stop()  # noqa: SLF001
                return
            except Exception as error:  # noqa: BLE001 - whatever py4j and Ray make of a session that ends
                # The next look finds the same.
                _log.debug("a look for lost executors failed: %s", error)


class AppMasterLost(Exception):
    """The actor that starts a session's executors is gone, and they end with it."""


class _SessionExecutors:
    """The executors of a session that `start` has started."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
        self._context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001

    def registered(self) -> set[str]:
        ids: str = self._context.getExecutorIds().mkString(" ")
        return set(ids.split())

    def actors(self) -> set[str]:
        names = ray.util.list_named_actors()
        if APP_MASTER_ACTOR not in names:
            raise AppMasterLost
        return {name.removeprefix(EXECUTOR_ACTOR) for name in executors_among(names)}

    def end_actor(self, executor_id: str) -> None:
        if not ray.is_initialized():  # `get_actor` would start another
            raise ConnectionError("the process has left Ray")
        ray.kill(ray.get_actor(EXECUTOR_ACTOR + executor_id), no_restart=True)

    def ask_for(self, total: int) -> None:
        no_places = self._jvm.PythonUtils.toScalaMap({})
        self._context.requestTotalExecutors(total, 0, no_places)
