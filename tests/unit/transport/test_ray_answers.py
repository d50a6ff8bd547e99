from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
import ray
import ray.exceptions as ray_errors

from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.transport.ray_calls import RayCalls
from pulsar_ray.transport.ray_errors import translated


def test_an_actor_whose_disk_is_full_is_a_typed_error() -> None:
    failed: Callable[..., Exception] = ray_errors.RayTaskError
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        pytest.raises(
            BrokerPersistenceError, match=r"t -> s\.attach: .*No space left on device: see to the disk"
        ),
        translated("t -> s.attach"),
    ):
        raise failed("attach", "the actor's traceback", full)


class LateReference:
    """An answer that does not come while it is waited for."""

    def __init__(self) -> None:
        self.taken = 0

    def future(self) -> None:
        self.taken += 1


def test_an_answer_that_comes_too_late_is_taken_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray prints errors that nobody took into the terminal."""

    def too_early(*_: Any, timeout: float) -> None:
        raise ray_errors.GetTimeoutError

    monkeypatch.setattr(ray, "get", too_early)
    reference = LateReference()
    with pytest.raises(ray_errors.GetTimeoutError):
        RayCalls().result(reference, timeout_s=0.01)
    assert reference.taken == 1
