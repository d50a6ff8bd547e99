"""A Ray that was started without metrics has a broker all the same."""

from __future__ import annotations

from typing import Any

import pytest
import ray

from pulsar_ray import Admin, InitialPosition
from pulsar_ray.broker.health.disk_level import REMEDY
from pulsar_ray.broker.serving.logs.node_log import NODE_LOG
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.this_ray import session_directory
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
        log = session_directory() / "logs" / NODE_LOG
        wait_until(lambda: "Ray was started without metrics" in log.read_text(), what="a word in the log")
        with Admin() as admin:
            # A disk that is nearly full is no matter of metrics.
            assert [found for found in admin.health().findings if found.remedy != REMEDY] == []
    finally:
        broker.close()
