"""What a client asks where to attach to an actor; the cluster is played here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import Moved, PulsarException, ServiceUnitNotReady, Timeout
from pulsar_ray.transport.actor_attacher import ActorAttacher
from pulsar_ray.transport.cluster import AttachReply

REMOTE = "/of/another/node"


class Asked:
    """A cluster that notes what was asked, and answers or refuses."""

    def __init__(self, unix_path: str = REMOTE) -> None:
        self.unix_path = unix_path
        self.refusals: list[PulsarException] = []
        self.asked: list[tuple[str, bool]] = []
        self.attempts: list[int] = []
        self.silent: list[str] = []
        self.found = 0
        self.controller_is_there = True

    def attach(
        self, address: str, client_id: str, *, want_tcp: bool, attempt: int, timeout_s: float
    ) -> AttachReply:
        assert client_id == "me"
        assert timeout_s > 0
        self.asked.append((address, want_tcp))
        self.attempts.append(attempt)
        if self.refusals:
            raise self.refusals.pop()
        return AttachReply(
            1, 1, b"", 5, self.unix_path, ("host", 1) if want_tcp else None, ("", ""), "/a", 1, {}
        )

    def report_silent(self, address: str) -> None:
        self.silent.append(address)

    def find(self) -> str:
        if not self.controller_is_there:
            raise ServiceUnitNotReady("no controller")
        self.found += 1
        return f"found-{self.found}"

    def attaching(self, transport: str) -> ActorAttacher:
        cluster: Any = self
        return ActorAttacher(cluster, "name", self.find, "me", transport)


def test_where_its_socket_is_no_port_is_asked_for(tmp_path: Path) -> None:
    cluster = Asked(str(tmp_path))
    assert cluster.attaching("auto").attach().tcp_address is None
    assert cluster.asked == [("name", False)]


def test_elsewhere_a_port_is_asked_for_from_then_on() -> None:
    cluster = Asked()
    attaching = cluster.attaching("auto")
    assert attaching.attach().tcp_address is not None
    assert attaching.attach().tcp_address is not None
    assert cluster.asked == [("name", False), ("name", True), ("name", True)]
    assert cluster.attempts == sorted(set(cluster.attempts))


@pytest.mark.parametrize(("transport", "wants_tcp"), [("socket", False), ("ray", False), ("tcp", True)])
def test_a_forced_way_is_asked_for_at_once(transport: str, wants_tcp: bool) -> None:
    cluster = Asked()
    cluster.attaching(transport).attach()
    assert cluster.asked == [("name", wants_tcp)]


def test_only_one_that_has_moved_is_looked_for() -> None:
    cluster = Asked()
    attaching = cluster.attaching("tcp")
    for error in (ServiceUnitNotReady("starting"), Moved("asleep")):
        cluster.refusals = [error]
        with pytest.raises(type(error)):
            attaching.attach()
    assert cluster.found == 0
    attaching.attach()
    attaching.attach()
    assert cluster.found == 1
    assert attaching.address == "found-1"
    assert cluster.asked[-2:] == [("found-1", True)] * 2


def test_one_that_is_not_found_is_looked_for_again() -> None:
    cluster = Asked()
    attaching = cluster.attaching("tcp")
    cluster.refusals = [Moved("asleep")]
    with pytest.raises(Moved):
        attaching.attach()
    cluster.controller_is_there = False
    with pytest.raises(ServiceUnitNotReady):
        attaching.attach()
    cluster.controller_is_there = True
    attaching.attach()
    assert attaching.address == "found-1"


def test_one_that_does_not_answer_is_reported() -> None:
    cluster = Asked()
    cluster.refusals = [Timeout("no answer")]
    attaching = cluster.attaching("tcp")
    with pytest.raises(Timeout):
        attaching.attach()
    assert cluster.silent == ["name"]
    attaching.attach()
    assert cluster.found == 0
