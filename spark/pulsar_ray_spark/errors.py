"""Errors of the Spark side; each also is one of the client's own."""

from __future__ import annotations

from pulsar_ray.errors import InvalidConfiguration, PulsarException


class JavaNotFound(InvalidConfiguration):
    """No Java 17 here, or Ray was started where it saw none."""


class SparkNotInstalled(InvalidConfiguration):
    """A package of the extra `[spark]` is missing."""


class SparkNotUsable(InvalidConfiguration):
    """A Spark session that RayDP did not start on the Ray of this process."""


class SparkAlreadyRunning(PulsarException):
    """Another session runs in this process, or in its Ray namespace."""


class SparkStopped(PulsarException):
    """The Spark session that was given has been stopped."""


class SchemaMismatch(PulsarException):
    """A value does not fit the schema; the text names topic and message."""


class SparkNotStarted(PulsarException):
    """Spark came up without executors.

    The text names the resources they asked for and those of the cluster.
    """

    retriable = True


class LandingMismatch(InvalidConfiguration):
    """A landing, its folder or a checkpoint of it was begun with other arguments."""


class LandingInUse(PulsarException):
    """The landing of this name runs already, here or in another process."""


class PathNotShared(InvalidConfiguration):
    """A local path of a landing, on a cluster of several nodes."""


class QueryMismatch(InvalidConfiguration):
    """A query of this name was begun with other topics."""


class QueryInUse(PulsarException):
    """Another process, or another query of this one, runs the query of this name."""


class QueryFailed(PulsarException):
    """A query has stopped at an error, which is the cause.

    The batch runs again at the next start.
    """
