"""Errors of the Spark side; each also is one of the client's own."""

from __future__ import annotations

from pulsar_ray.errors import InvalidConfiguration, PulsarException


class JavaNotFound(InvalidConfiguration):
    """No Java 17 here, or Ray was started where it saw none."""


class SparkAlreadyRunning(PulsarException):
    """This process has a Spark session already, and there can be only one."""


class SparkNotStarted(PulsarException):
    """Spark came up without executors.

    The text names the resources they asked for and those of the cluster.
    """

    retriable = True
