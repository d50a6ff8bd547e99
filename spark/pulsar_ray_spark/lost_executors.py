"""Replace the executors that a Spark session loses.

Ray starts a killed executor's actor again, but RayDP's app master has let go of the actor's handle by then:
the next garbage collection there ends the new executor, and nothing replaces that one. So the actor of a lost
executor is ended for good here, and the app master asked for another, whose handle it keeps (ADR 0089).
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol

import ray
from pyspark.sql import SparkSession

from pulsar_ray.transport.this_ray import ray_job
from pulsar_ray_spark.running import runs

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
STOP_TIMEOUT_S = 10.0
ATTEMPTS = 200
"""How often one look may ask the app master for an executor."""
EXECUTOR_ACTOR = "raydp-executor-"
"""Begins an executor's actor's name, before the id it first registers under."""


class Executors(Protocol):
    """The executors of a session, as Spark's driver and Ray see them. Ids are Spark's."""

    def registered(self) -> set[str]:
        """Return the ids of those that Spark gives tasks to."""

    def actors(self) -> set[str]:
        """Return the ids whose actors are there, if only starting."""

    def is_second_life(self, executor_id: str) -> bool:
        """Whether Ray has started the actor again, or is about to."""

    def end_actor(self, executor_id: str) -> None:
        """End the actor for good."""

    def ask_for(self, total: int) -> None:
        """Have the app master start so many as it counts fewer."""


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
        ended = {
            executor_id
            for executor_id in actors - registered
            if executor_id in lost or self._executors.is_second_life(executor_id)
        }
        for executor_id in ended:
            self._executors.end_actor(executor_id)
        if (missing := self._wanted - len(actors - ended)) > 0:
            _log.warning("%d of %d Spark executors were lost: others start", missing, self._wanted)
            self._start(missing, len(registered), actors)

    def _start(self, missing: int, registered: int, actors: set[str]) -> None:
        # The app master starts as many as it counts fewer than the total, and counts those once they
        # register. It may count more than the driver: one it has not noticed the loss of, or, for ever, one
        # that was killed while it registered.
        total = registered + missing
        for _ in range(ATTEMPTS):
            self._executors.ask_for(total)
            started = self._executors.actors() - actors
            actors = actors | started
            missing -= len(started)
            if missing <= 0:
                return
            total = total - len(started) + missing if started else total + 1


class ExecutorReplacement:
    """A thread that looks for lost executors until the session ends.

    It ends by itself once the session was stopped or the process has left the session's Ray.
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
            except Exception as error:  # noqa: BLE001 - whatever py4j and Ray make of a session that ends
                # The next look finds the same.
                _log.debug("a look for lost executors failed: %s", error)


class _SessionExecutors:
    """The executors of a session that `start` has started."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
        self._context: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001

    def registered(self) -> set[str]:
        ids: str = self._context.getExecutorIds().mkString(" ")
        return set(ids.split())

    def actors(self) -> set[str]:
        return {name.removeprefix(EXECUTOR_ACTOR) for name in executor_actors()}

    def is_second_life(self, executor_id: str) -> bool:
        actor: Any = ray.get_actor(EXECUTOR_ACTOR + executor_id)
        state = ray._private.state.actors(actor._actor_id.hex())  # noqa: SLF001 - needs no dashboard
        return bool(state["State"] == "RESTARTING" or state["NumRestarts"])

    def end_actor(self, executor_id: str) -> None:
        ray.kill(ray.get_actor(EXECUTOR_ACTOR + executor_id), no_restart=True)

    def ask_for(self, total: int) -> None:
        no_places = self._jvm.PythonUtils.toScalaMap({})
        self._context.requestTotalExecutors(total, 0, no_places)


def executor_actors() -> list[str]:
    """Return the names of the actors of this Ray namespace that are Spark's executors."""
    return [name for name in ray.util.list_named_actors() if name.startswith(EXECUTOR_ACTOR)]
