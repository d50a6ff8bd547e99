"""The settings of a Spark session: those asked for, their defaults, and Spark's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray_spark.java import JAVA_OPTIONS, Java

DEFAULTS: dict[str, Any] = {
    "app_name": "pulsar-ray",
    "num_executors": 1,
    "executor_cores": 1,
    "executor_memory": "1g",
}

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

# Driver, executors, and RayDP's app master.
_JAVA_OPTION_KEYS = (
    "spark.driver.extraJavaOptions",
    "spark.executor.extraJavaOptions",
    "spark.ray.raydp_app_master.extraJavaOptions",
)


@dataclass(frozen=True)
class AskedSettings:
    """The settings given to `start`.

    None stands for the default, or for the value of the session that runs.
    """

    app_name: str | None = None
    num_executors: int | None = None
    executor_cores: int | None = None
    executor_memory: str | int | None = None
    conf: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raise InvalidConfiguration for a count below 1, and for a key without a dot."""
        for name in ("num_executors", "executor_cores"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidConfiguration(f"{name} is {value!r}: give a whole number from 1 on")
        for key in self.conf or {}:
            if "." not in key:
                raise InvalidConfiguration(
                    f"{key!r} is no Spark setting; those have dotted names, as spark.sql.ansi.enabled"
                )

    def complete(self) -> SessionSettings:
        """The settings of a new session."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return SessionSettings(**{**DEFAULTS, "conf": {}, **given})

    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return not self.conf and all(getattr(self, name) is None for name in DEFAULTS)


@dataclass(frozen=True)
class SessionSettings:
    """The settings of a session that runs."""

    app_name: str
    num_executors: int
    executor_cores: int
    executor_memory: str | int
    conf: Mapping[str, str]

    def differences(self, asked: AskedSettings) -> list[str]:
        """Name each setting that was asked for otherwise.

        The application's name does not count: it is a label.
        """
        found = [
            f"{name} is {getattr(self, name)!r}, not {wanted!r}"
            for name in ("num_executors", "executor_cores", "executor_memory")
            if (wanted := getattr(asked, name)) is not None and wanted != getattr(self, name)
        ]
        for key, wanted in (asked.conf or {}).items():
            if self.conf.get(key) != wanted:
                found.append(f"{key} is {self.conf.get(key, 'not given')}, not {wanted}")
        return found

    def configuration(self, java: Java, python: str) -> dict[str, str]:
        """Spark's configuration: what works on Ray, and over it what was asked for."""
        settings = {
            "spark.pyspark.python": python,
            "spark.pyspark.driver.python": python,
            # The master only waits; with a whole CPU two cores would have one left.
            "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
            # RayDP takes the node that owns a block's reference (the driver's) for the node that has it.
            "spark.locality.wait": "0s",
            # Frames go to and from pandas by the column.
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.ui.showConsoleProgress": "false",
            # A window or join of a stream runs a task for each in every batch: as many as run at once.
            _SHUFFLE_PARTITIONS: str(self.num_executors * self.executor_cores),
        }
        if _SHUFFLE_PARTITIONS not in self.conf:
            # Frames that are no streams begin with Spark's own number, of which Spark joins the small ones.
            settings["spark.sql.adaptive.coalescePartitions.initialPartitionNum"] = "200"
        settings.update(self.conf)
        for key in _JAVA_OPTION_KEYS:
            settings[key] = f"{JAVA_OPTIONS} {self.conf.get(key, '')}".rstrip()
        # With a number here RayDP counts executors that Ray once started again twice, and starts none in the
        # place of those that are lost. The driver says how many there are to be.
        settings[_JAVA_OPTION_KEYS[2]] += " -Dspark.executor.instances=0"
        # Ray starts the executors' JVMs for the app master's job, as the first `java` on that job's PATH.
        settings[_JAVA_OPTION_KEYS[2]] += f" -Dray.job.runtime-env.env-vars.PATH={path_with(java)}"
        return settings


def path_with(java: Java) -> str:
    """A runtime environment's PATH with this Java first; Ray puts in that of the node."""
    return f"{java.bin_directory}{os.pathsep}${{PATH}}"
