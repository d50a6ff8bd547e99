"""A Ray that was started without metrics has a broker all the same."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from pulsar_ray import InitialPosition
from tests.running_broker import Broker

WAIT_MS = 30_000


@pytest.mark.long
def test_a_ray_without_metrics_serves_as_ever(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_enable_metrics_collection", "0")
    broker = Broker(tmp_path_factory.mktemp("broker"), metrics_interval_seconds=0.2)
    try:
        nodes: Any = ray.nodes
        assert [node["MetricsExportPort"] for node in nodes()] in ([-1], [0])
        client = broker.client(metrics=True)
        consumer = client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
        with client.create_producer("t") as producer:
            for number in range(100):
                producer.send(b"%d" % number)
        assert [int(consumer.receive(WAIT_MS).data()) for _ in range(100)] == list(range(100))
        consumer.close()
    finally:
        broker.close()
