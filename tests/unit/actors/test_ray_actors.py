"""What a call of a Ray actor comes to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from pulsar_ray.actors.ray_actors import RayActor
from pulsar_ray.errors import BrokerPersistenceError, Moved, NotConnected, SubscriptionNotFound, Timeout


def task_error(cause: Exception) -> BaseException:
    """As Ray raises it: an error that is its cause, too."""
    task_error: Any = ray.exceptions.RayTaskError
    raised: BaseException = task_error("probe", "traceback", cause).as_instanceof_cause()
    return raised


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (task_error(SubscriptionNotFound("deleted")), SubscriptionNotFound),
        (task_error(TimeoutError(110, "the disk")), BrokerPersistenceError),
        (task_error(OSError(5, "the disk")), BrokerPersistenceError),
        (ray.exceptions.ActorDiedError(), Moved),
        (ray.exceptions.ActorUnavailableError("restarting", b"0" * 16), NotConnected),
        (ray.exceptions.GetTimeoutError("late"), Timeout),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("within_s", [None, 20.0])
def test_it_is_a_typed_error(
    raised: BaseException, expected: type[Exception], within_s: float | None
) -> None:
    async def fail() -> None:
        raise raised

    actor = RayActor("a", SimpleNamespace(probe=SimpleNamespace(remote=fail)))
    with pytest.raises(expected) as error:
        asyncio.run(actor.call("probe", within_s=within_s))
    assert type(error.value) is expected, "none of Ray's beside"


def test_no_answer_in_time_is_named() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    actor = RayActor("a", SimpleNamespace(probe=SimpleNamespace(remote=wait)))
    with pytest.raises(Timeout, match=r"a.probe is not answered within 0.01 s"):
        asyncio.run(actor.call("probe", within_s=0.01))
