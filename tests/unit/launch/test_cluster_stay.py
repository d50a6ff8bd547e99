"""A program that joined a cluster's Ray for its clients goes on with the next Ray at that address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import (
    AlreadyClosed,
    BrokerGone,
    ConnectError,
    NotConnected,
    PulsarException,
    UnsupportedVersionError,
)
from pulsar_ray.launch.rays import cluster_stay
from pulsar_ray.launch.rays.cluster_stay import ClusterStay, RayletLife
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.ray_calls import RayCalls

ADDRESS = "192.0.2.1:6379"
DEADLINE_S = 20.0


class Raylet:
    """A socket where a raylet would listen."""

    def __init__(self, path: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen()

    def close_connection(self) -> None:
        """Close the oldest connection that is open here."""
        self._listening.accept()[0].close()

    def end(self) -> None:
        self._listening.close()


@pytest.fixture
def raylet(tmp_path: Path) -> Iterator[Raylet]:
    raylet = Raylet(tmp_path / "raylet")
    yield raylet
    raylet.end()


def test_a_raylet_that_closes_a_connection_and_takes_another_lives(raylet: Raylet, tmp_path: Path) -> None:
    life = RayletLife(str(tmp_path / "raylet"))
    assert not life.has_ended(0.01)
    raylet.close_connection()
    assert not life.has_ended(DEADLINE_S)
    life.close()


def test_a_raylet_that_takes_no_connection_has_ended(raylet: Raylet, tmp_path: Path) -> None:
    life = RayletLife(str(tmp_path / "raylet"))
    raylet.end()
    assert life.has_ended(DEADLINE_S)
    assert RayletLife(str(tmp_path / "raylet")).has_ended(0.01)


class TakenAlong:
    """A cluster that notes what it is told, and in which job."""

    def __init__(self, ray: FakeRay) -> None:
        self._ray = ray
        self.told: list[str | PulsarException] = []

    def left(self) -> None:
        self.told.append(f"left in {self._ray.job!r}")

    def joined(self) -> None:
        self.told.append(f"joined {self._ray.job!r}")

    def gone(self, error: PulsarException) -> None:
        self.told.append(error)


class FakeRay:
    """This process's Ray: the first ends, the second takes joiners once `is_up`."""

    def __init__(self, path: Path) -> None:
        self.job = "first"
        self.calls = RayCalls()
        self.refused = threading.Event()
        self.is_up = False
        self.is_of_another_version = False
        self.other_job = ""
        self.next: Raylet | None = None
        self._path = path

    def leave(self, _wait_s: float, why: PulsarException, then: Callable[[], None]) -> bool:
        with self.calls.kept_out(DEADLINE_S, why) as is_empty:
            assert is_empty
            self.job = ""
            then()
        return True

    def join(self) -> None:
        if self.is_of_another_version:
            raise UnsupportedVersionError("the Ray cluster is Ray 3.0, and this program has Ray 2.60")
        if not self.is_up:
            self.job = self.other_job
            self.refused.set()
            raise ConnectError(f"no Ray cluster answers at {ADDRESS}")
        self._path = self._path.with_suffix(".next")
        self.next = Raylet(self._path)
        self.job = "second"

    def socket(self) -> str:
        return str(self._path)


@pytest.fixture
def fake_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    fake = FakeRay(tmp_path / "raylet")
    replaced: dict[str, Any] = {
        "ray_job": lambda: fake.job,
        "raylet_socket": fake.socket,
        "leave_ray": fake.leave,
        "RAY_CALLS": fake.calls,
        "LOOK_INTERVAL_S": 0.01,
        "_JOIN_PAUSE_S": 0.01,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(cluster_stay, name, value)
    yield fake
    fake.job = fake.other_job = "third"
    wait_until(lambda: not _looking(), DEADLINE_S, "the end of the stay's thread")
    if fake.next is not None:
        fake.next.end()


def _looking() -> bool:
    return any(thread.name == "pulsar-ray-cluster" for thread in threading.enumerate())


def test_calls_wait_for_the_next_ray_with_an_error_that_may_pass(fake_ray: FakeRay, raylet: Raylet) -> None:
    cluster = TakenAlong(fake_ray)
    stay = ClusterStay(ADDRESS, fake_ray.join)
    stay.add(cluster)  # type: ignore[arg-type]
    raylet.end()
    assert fake_ray.refused.wait(DEADLINE_S)
    assert stay.goes_on()
    with pytest.raises(NotConnected, match=f"waiting for the next one at {ADDRESS}"), fake_ray.calls:
        pytest.fail("somebody called a Ray that has gone")
    fake_ray.is_up = True
    wait_until(lambda: len(cluster.told) == 2, DEADLINE_S, "the next Ray")
    assert cluster.told == ["left in ''", "joined 'second'"]
    wait_until(lambda: not fake_ray.calls.is_ending, DEADLINE_S, "calls of the next Ray")
    with fake_ray.calls:
        assert stay.goes_on()


def test_a_program_that_joined_by_itself_is_told_what_to_do(fake_ray: FakeRay, raylet: Raylet) -> None:
    cluster = TakenAlong(fake_ray)
    stay = ClusterStay(ADDRESS, None)
    stay.add(cluster)  # type: ignore[arg-type]
    raylet.end()
    wait_until(lambda: bool(cluster.told), DEADLINE_S, "word of the end")
    (told,) = cluster.told
    assert isinstance(told, BrokerGone)
    assert "call ray.shutdown() and ray.init(), and make a new Client" in str(told)
    assert fake_ray.job == "first"
    assert not stay.goes_on()


def test_a_program_that_joins_another_ray_meanwhile_is_not_taken_from_it(
    fake_ray: FakeRay, raylet: Raylet
) -> None:
    fake_ray.other_job = "other"
    cluster = TakenAlong(fake_ray)
    stay = ClusterStay(ADDRESS, fake_ray.join)
    stay.add(cluster)  # type: ignore[arg-type]
    raylet.end()
    wait_until(lambda: len(cluster.told) == 2, DEADLINE_S, "word of the end")
    assert isinstance(cluster.told[1], BrokerGone)
    assert fake_ray.job == "other"
    assert not stay.goes_on()


def test_a_program_whose_cluster_comes_back_with_another_version_ends_and_says_so(
    fake_ray: FakeRay, raylet: Raylet
) -> None:
    cluster = TakenAlong(fake_ray)
    stay = ClusterStay(ADDRESS, fake_ray.join)
    stay.add(cluster)  # type: ignore[arg-type]
    raylet.end()
    assert fake_ray.refused.wait(DEADLINE_S)
    fake_ray.is_of_another_version = True
    wait_until(lambda: len(cluster.told) == 2, DEADLINE_S, "word of the end")
    assert isinstance(cluster.told[1], BrokerGone)
    assert "Ray cluster is Ray 3.0, and this program has Ray 2.60" in str(cluster.told[1])
    assert not stay.goes_on()


def test_the_end_of_a_program_does_not_wait_for_the_next_ray(fake_ray: FakeRay, raylet: Raylet) -> None:
    ClusterStay(ADDRESS, fake_ray.join)
    raylet.end()
    assert fake_ray.refused.wait(DEADLINE_S)
    ended = threading.Thread(target=fake_ray.calls.end, daemon=True)
    ended.start()
    ended.join(DEADLINE_S)
    assert not ended.is_alive()
    with pytest.raises(AlreadyClosed, match="the program leaves Ray"), fake_ray.calls:
        pytest.fail("somebody came in")
