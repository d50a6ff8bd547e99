"""What a worker had in hand whose whole node died comes again, and does not count as failed."""

from __future__ import annotations

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import SHARED

DEADLINE_S = 120.0
_TAKE_TWICE = f"""
import sys, pulsar_ray, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

def subscribed(client):
    letters = pulsar_ray.ConsumerDeadLetterPolicy(2)
    kind = pulsar_ray.ConsumerType.Shared
    return client.subscribe("t", "s", kind, receiver_queue_size=1, dead_letter_policy=letters)

class Worker:
    def take(self):
        self.consumer = subscribed(pulsar_ray.Client())
        self.message = self.consumer.receive(60_000)
        return self.message.failures

with pulsar_ray.Client() as client:
    subscribed(client).close()
    client.create_producer("t").send(b"healthy")
    (node,) = [each["NodeID"] for each in ray.nodes() if each["NodeManagerAddress"] == sys.argv[1]]
    place = NodeAffinitySchedulingStrategy(node, soft=False)
    worker = ray.remote(num_cpus=0, scheduling_strategy=place)(Worker).remote()
    ray.get(worker.take.remote())
    open("{SHARED}/taken", "w").close()
    message = subscribed(client).receive(90_000)
    open("{SHARED}/again", "w").write(f"{{message.data().decode()}} {{message.failures}}")
"""


@pytest.mark.timeout(600)
def test_a_message_in_the_hands_of_a_node_that_dies_does_not_count_as_failed(ray_nodes: RayNodes) -> None:
    # The topic lies on the head, for there is no other store yet when it is made.
    ray_nodes.admin("topics.create_topic", "t")
    worker, shared = ray_nodes.add_worker(), ray_nodes.world.shared
    with (
        (shared / "output").open("w") as output,
        ray_nodes.head.start("python", "-c", _TAKE_TWICE, worker.address, output=output) as program,
    ):
        try:
            wait_until((shared / "taken").exists, DEADLINE_S, "the message in the worker's hands")
            worker.kill()
            assert program.wait(DEADLINE_S) == 0
        finally:
            print((shared / "output").read_text()[-4000:])
    assert (shared / "again").read_text() == "healthy 0"
