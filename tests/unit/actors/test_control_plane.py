"""The controller looks after everything again and again, whatever fails of it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from pulsar_ray.actors.control_plane import each_by_itself
from pulsar_ray.errors import BrokerPersistenceError


def test_a_step_that_fails_for_good_keeps_no_other_from_being_taken(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[str] = []

    async def fail() -> None:
        raise BrokerPersistenceError("the disk of the catalog fails")

    async def take() -> None:
        taken.append("taken")

    with caplog.at_level(logging.ERROR):
        asyncio.run(each_by_itself(take, fail, take))
    assert taken == ["taken"] * 2
    assert "the disk of the catalog fails" in caplog.text
