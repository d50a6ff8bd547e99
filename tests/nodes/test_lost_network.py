"""A worker that is cut off, or killed, while programs on the head node publish and receive."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.programs import READ_ALL
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import SHARED, Node

SENT_BEFORE = 100
SENT_AFTER = 100
DEADLINE_S = 120.0
_PRODUCE = f"""
import os, time, pulsar_ray
from pulsar_ray.errors import PulsarException
log = open("{SHARED}/confirmed", "w", buffering=1)
with pulsar_ray.Client() as client:
    producer = client.create_producer("t", send_timeout_millis=60_000)
    number = 0
    while not os.path.exists("{SHARED}/stop"):
        for key in (None, str(number)):
            try:
                producer.send(b"%d %s" % (number, str(key).encode()), partition_key=key)
                log.write(f"{{number}} {{key}}\\n")
            except PulsarException:
                time.sleep(0.1)
        number += 1
        time.sleep(0.01)
answer(True)
"""
_CONSUME = f"""
import pulsar_ray
log = open("{SHARED}/received", "w", buffering=1)
with pulsar_ray.Client() as client:
    consumer = client.subscribe("t", "s")
    log.write("subscribed\\n")
    while True:
        message = consumer.receive()
        log.write(message.data().decode() + "\\n")
        consumer.acknowledge(message)
"""
_SEND_KEYED = """
import os, pulsar_ray
from pulsar_ray.errors import PulsarException, WrongNode
served, refusals = 0, []
with pulsar_ray.Client() as client:
    try:
        producer = client.create_producer("t", send_timeout_millis=5_000)
        for number in range(10):
            try:
                producer.send(os.urandom(8).hex().encode(), partition_key=str(number))
                served += 1
            except WrongNode as error:
                refusals.append(str(error))
    except PulsarException:
        refusals = []  # Ray does not know yet that the node is away
answer([served, refusals])
"""


def lines(nodes: RayNodes, name: str) -> list[str]:
    path = nodes.world.shared / name
    return path.read_text().splitlines() if path.exists() else []


def _cut(nodes: RayNodes, worker: Node) -> None:
    worker.cut()
    time.sleep(10.0)  # how long the network is away is what is tested
    worker.heal()


def _cut_until_ray_gives_it_up(nodes: RayNodes, worker: Node) -> None:
    worker.cut()
    until = time.monotonic() + 90.0

    def refusals() -> list[str]:
        served, refused = nodes.head.ask(_SEND_KEYED)
        assert served or not refused, "what is up is served"
        return list(refused)

    refused = wait_until(refusals, DEADLINE_S, "refusals")
    assert all(worker.name in refusal for refusal in refused), "they name the host"
    time.sleep(max(0.0, until - time.monotonic()))
    worker.heal()
    # Ray wants a node that it took for dead to be started again.
    worker.run("ray", "stop", "--force", check=False)
    nodes.start_worker(worker)


def _kill(nodes: RayNodes, worker: Node) -> None:
    worker.kill()
    worker.boot(worker.other_address())
    nodes.start_worker(worker)


@pytest.mark.parametrize(
    "harm",
    [_cut, _cut_until_ray_gives_it_up, _kill],
    ids=["cut off for 10 s", "cut off for 90 s", "killed, and back under another address"],
)
@pytest.mark.timeout(500)
def test_no_confirmed_message_is_lost_or_doubled(
    ray_nodes: RayNodes, harm: Callable[[RayNodes, Node], None]
) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.retain_all()
    ray_nodes.admin("topics.create_partitioned_topic", "t", 4)
    head = ray_nodes.head

    def written(name: str) -> list[str]:
        return lines(ray_nodes, name)

    with head.start("python", "-c", _CONSUME):
        wait_until(lambda: written("received"), DEADLINE_S, "the subscription")
        with head.start("python", "-c", f"def answer(_): pass\n{_PRODUCE}") as producing:
            wait_until(lambda: len(written("confirmed")) > SENT_BEFORE, DEADLINE_S, "the first messages")
            harm(ray_nodes, worker)
            ray_nodes.wait_for_stores()
            enough = len(written("confirmed")) + SENT_AFTER
            wait_until(lambda: len(written("confirmed")) > enough, DEADLINE_S, "messages after it")
            (ray_nodes.world.shared / "stop").touch()
            assert producing.wait(DEADLINE_S) == 0
        confirmed = set(written("confirmed"))
        wait_until(lambda: confirmed <= set(written("received")), DEADLINE_S, "all of them at the consumer")
    stored = Counter(head.ask(READ_ALL))
    assert not confirmed - stored.keys(), "confirmed, and not there"
    assert max(stored.values()) == 1, json.dumps([each for each, count in stored.items() if count > 1])
