"""HTTP on a Ray: an actor beside the broker, which comes back where it was."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import ray

from pulsar_ray import InitialPosition
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.gateway.gateway_actor import gateway_url, start_gateway
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import GATEWAY
from tests.running_broker import Broker


@pytest.fixture
def url(broker: Broker) -> Iterator[str]:
    yield start_gateway(Settings(data_dir=str(broker.data_dir), http_listen="0"))
    ray.kill(broker.handle(GATEWAY))


def published(url: str, topic: str, payload: str) -> bool:
    """Publish over HTTP; False while nobody answers."""
    body = json.dumps({"messages": [{"payload": payload}]}).encode()
    path = topic.replace("://", "/")
    request = urllib.request.Request(f"{url}/topics/{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            results = json.loads(answer.read())["messagePublishResults"]
    except (urllib.error.URLError, ConnectionError):
        return False
    return bool(results[0]["errorCode"] == 0)


def test_the_page_shows_a_topic_that_was_published_to(broker: Broker, url: str, topic: str) -> None:
    broker.client().subscribe(topic, "billing", initial_position=InitialPosition.Earliest).close()
    assert published(url, topic, "a message")
    path = topic.replace("://", "/")
    for address, shown in (
        (f"{url}/ui/topics/{path}", "billing"),
        (f"{url}/ui/topics/{path}/messages", "a message"),
        (f"{url}/ui/nodes", "serving"),
        (f"{url}/", "<h1>Topics</h1>"),
    ):
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert shown in answer.read().decode(), address
    assert gateway_url() == url


def test_a_gateway_that_dies_comes_back_at_its_address(broker: Broker, url: str, topic: str) -> None:
    consumer = broker.client().subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    assert published(url, topic, "before")
    assert consumer.receive(30_000).data() == b"before"
    former = broker.kill(GATEWAY)
    wait_until(lambda: published(url, topic, "after"), 60, "an answer of the next process")
    assert consumer.receive(30_000).data() == b"after"
    assert broker.pid(GATEWAY) != former
    assert start_gateway(Settings(data_dir=str(broker.data_dir), http_listen="0")) == url


def test_an_address_that_is_taken_is_refused_and_leaves_no_actor(broker: Broker) -> None:
    settings = Settings(data_dir=str(broker.data_dir), http_listen="192.0.2.1:9")
    with pytest.raises(InvalidConfiguration, match="nothing can listen"):
        start_gateway(settings)
    with pytest.raises(ValueError, match=GATEWAY):
        wait_until(lambda: not broker.handle(GATEWAY))
