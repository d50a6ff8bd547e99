"""Translates Ray's errors into ours.

Each of ours states the request's fate and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray.exceptions as ray_errors

from pulsar_ray.errors import (
    BrokerPersistenceError,
    Moved,
    NotConnected,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
    UnknownError,
)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise our typed errors for whatever Ray raises inside; `what` begins the text."""
    try:
        yield
    except ray_errors.GetTimeoutError:
        raise Timeout(
            f"{what}: no answer in time; its process is busy or still starting, which takes longer while "
            "many do. Try again, or with a larger operation_timeout_seconds; whether it was done is unknown"
        ) from None
    except ray_errors.RayTaskError as error:
        # Before PulsarException: Ray raises a class of both, whose text is the actor's traceback.
        cause = error.cause
        if isinstance(cause, PulsarException):
            raise cause from None
        if isinstance(cause, OSError):
            raise BrokerPersistenceError(f"{what}: {cause}: see to the disk of the data directory") from None
        raise UnknownError(f"{what}: {type(cause).__name__}: {cause}") from None
    except PulsarException:
        raise
    except (ray_errors.ActorDiedError, ray_errors.ActorUnschedulableError) as error:
        # Never final: the actor may have moved, been replaced or been stopped for a moment. The controller
        # knows.
        raise Moved(f"{what}: the actor is gone ({type(error).__name__}); resolve it again") from None
    except ray_errors.ActorUnavailableError:
        raise NotConnected(f"{what}: the actor is restarting") from None
    except ray_errors.RayError as error:
        raise ServiceUnitNotReady(f"{what}: {type(error).__name__}: {error}") from None
    except ValueError as error:
        # ray.get_actor of a name that nobody has.
        if "Failed to look up actor" in str(error):
            raise Moved(f"{what}: no such actor; resolve it again") from None
        raise
