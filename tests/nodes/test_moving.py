"""Partitions that move between nodes of a real Ray while programs publish and consume."""

from __future__ import annotations

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import PORT, RayNodes, start_ray
from tests.nodes.world import DATA_DIR, SHARED, World, json_in

_FILL = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    client.subscribe("moved", "audit").close()
    producer = client.create_producer("moved")
    for _ in range(int(sys.argv[1])):
        producer.send_many([bytes(1000)] * 1000)
answer(True)
"""
_MOVE_UNDER_LOAD = """
import json, sys, threading, time, pulsar_ray
stop, sent, pauses, got = threading.Event(), [], [0.0], []
with pulsar_ray.Client() as client, pulsar_ray.Admin() as admin:
    producer = client.create_producer("moved", batching_enabled=False)
    consumer = client.subscribe("moved", "live", initial_position=pulsar_ray.InitialPosition.Latest)

    def send():
        while not stop.is_set():
            began = time.monotonic()
            value = b"live %d" % len(sent)
            producer.send(value)
            pauses.append(time.monotonic() - began)
            sent.append(value)

    def receive():
        while not stop.is_set() or len(got) < len(sent):
            try:
                message = consumer.receive(500)
            except pulsar_ray.Timeout:
                continue
            got.append(message.data())
            consumer.acknowledge(message)

    threads = [threading.Thread(target=work) for work in (send, receive)]
    for thread in threads:
        thread.start()
    moved = []
    for host in sys.argv[1:]:
        moved += [each.state + each.reason for each in admin.topics.move("moved", host)]
    stop.set()
    for thread in threads:
        thread.join(60)
    answer([moved, got == sent, len(sent), max(pauses)])
"""
_HOSTS = """
import pulsar_ray
with pulsar_ray.Admin() as admin:
    answer([node.host for node in admin.brokers.nodes()])
"""
_COUNT = """
import pulsar_ray
with pulsar_ray.Client() as client:
    audit = client.subscribe("moved", "audit")
    count = 0
    while audit.has_message_available():
        table = audit.receive_arrow(max_messages=10_000, timeout_millis=30_000)
        audit.acknowledge_arrow(table)
        count += table.num_rows
    answer(count)
"""
_BLOCKS = 20
REMOTE = f"file://{SHARED}/bucket"
DEADLINE_S = 120.0


@pytest.mark.timeout(400)
def test_a_partition_moves_there_and_back_under_load(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_topic", "moved")
    assert ray_nodes.head.ask(_FILL, str(_BLOCKS))
    hosts = ray_nodes.head.ask(_HOSTS)
    assert len(hosts) == 2
    places = [*hosts, *hosts]
    states, is_whole, sent, pause_s = ray_nodes.head.ask(_MOVE_UNDER_LOAD, *places)
    print(f"{sent} messages, the longest pause of the publisher {pause_s:.2f} s")
    assert set(states) == {"moved"}
    assert len(states) >= len(places) - 1
    assert is_whole
    assert worker.ask(_COUNT) == _BLOCKS * 1000 + sent


@pytest.mark.timeout(600)
def test_shipped_partitions_leave_a_drained_node_under_load(world: World) -> None:
    nodes = RayNodes(world)
    head = nodes.head
    start_ray(head, "--head", f"--port={PORT}", "--include-dashboard=false")
    settings = ("PULSAR_RAY_REMOTE_DURABILITY=sync",)
    head.run("env", *settings, "pulsar-ray", "start", "--data-dir", DATA_DIR, "--remote", REMOTE)
    nodes.add_worker()
    said = ["pulsar-ray", "remote", "status", "--json"]
    wait_until(lambda: head.run(*said).stdout.count('"is_ready": true') == 2, DEADLINE_S, "both stores ship")
    nodes.admin("topics.create_topic", "moved")
    hosts = head.ask(_HOSTS)
    assert head.ask(_FILL, str(_BLOCKS))
    states, is_whole, sent, pause_s = head.ask(_MOVE_UNDER_LOAD, *hosts, *hosts)
    print(f"shipped: {sent} messages, the longest pause of the publisher {pause_s:.2f} s")
    assert set(states) == {"moved"}
    assert is_whole
    head.run("pulsar-ray", "nodes", "drain", hosts[1])
    listed = json_in(head.run("pulsar-ray", "nodes", "--json").stdout)
    assert [node["state"] for node in listed if node["host"] == hosts[1]] == ["drained"]
    assert head.ask(_COUNT) == _BLOCKS * 1000 + sent
    health = head.run("pulsar-ray", "health", check=False)
    assert health.returncode == 0, health.stdout
