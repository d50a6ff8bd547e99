"""How many links a client keeps that nobody uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_ray.client.endpoint import actor_links
from pulsar_ray.client.endpoint.actor_links import ActorLinks
from pulsar_ray.transport.actor_link import ActorLink
from pulsar_ray.transport.cluster import PartitionRoute


class User:
    """A producer or consumer at a link."""

    awaits_packets = False
    awaited_consumer = None


class Links:
    """A client's links to a cluster of which only the names are known."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []
        cluster = SimpleNamespace(forget=self.forgotten.append)
        connection: Any = SimpleNamespace(cluster=cluster, when_gone=lambda _: None)
        self.links = ActorLinks(connection, "auto", 1.0)

    def to(self, number: int) -> ActorLink:
        route = cast("PartitionRoute", SimpleNamespace(address=f"p{number}", topic=f"t{number}"))
        return self.links.to_partition(route)


@pytest.mark.parametrize("lives_on_a_loop", [False, True])
def test_links_that_nobody_has_used_for_long_are_dropped(
    monkeypatch: pytest.MonkeyPatch, lives_on_a_loop: bool
) -> None:
    monkeypatch.setattr(actor_links, "KEPT_UNUSED", 3)
    client = Links()
    if lives_on_a_loop:
        client.links.loop = cast("Any", SimpleNamespace(is_closed=lambda: False))
    used = client.to(0)
    used.add_endpoint(1, cast("Any", User()))
    old = client.to(1)
    for number in range(2, 5):
        client.to(number)
    assert client.to(2) is client.to(2), "it is among the newest again"
    for number in range(5, 100):
        client.to(number)
    assert len(list(client.links)) <= 7
    assert old.is_closed
    assert "p1" in client.forgotten
    assert client.to(0) is used
    assert not used.is_closed
    assert client.to(1) is not old
