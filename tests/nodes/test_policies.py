"""Policies whose log lies on several nodes, while one is away and after their catalog is lost."""

from __future__ import annotations

import pytest

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import RayNodes
from tests.nodes.world import DATA_DIR

DEADLINE_S = 90.0
TOPICS = [f"t{number}" for number in range(8)]
_CREATE = """
import sys
from pulsar_ray.admin import Admin
with Admin() as admin:
    for name in sys.argv[1:]:
        admin.topics.create_topic(name)
"""
_SEND = """
import sys
import pulsar_ray
with pulsar_ray.Client() as client:
    for name in sys.argv[1:]:
        client.create_producer(name).send(b"1")
answer(None)
"""
_SET = """
import sys
from pulsar_ray.admin import Admin
from pulsar_ray.errors import WrongNode
held, refusals = [], []
with Admin() as admin:
    for name in sys.argv[2:]:
        try:
            admin.topics.policies.set(name, "max_producers", int(sys.argv[1]))
        except WrongNode as error:
            refusals.append(str(error))
        held.append(admin.topics.policies.get(name, "max_producers").value["max_producers"])
answer([held, refusals])
"""
_GET = """
import sys
from pulsar_ray.admin import Admin
with Admin() as admin:
    answer([admin.topics.policies.get(name, "max_producers").value["max_producers"] for name in sys.argv[1:]])
"""


@pytest.mark.timeout(400)
def test_policies_hold_while_their_log_is_away_and_change_again_when_it_is_back(
    ray_nodes: RayNodes,
) -> None:
    worker, head = ray_nodes.add_worker(), ray_nodes.head
    head.ask(_CREATE + "answer(None)", *TOPICS)
    assert head.ask(_SET, "3", *TOPICS) == [[3] * len(TOPICS), []]

    worker.kill()
    wait_until(
        lambda: any("away" in store for store in ray_nodes.admin("stats")["stores"]),
        DEADLINE_S,
        "the absence",
    )
    held, refusals = head.ask(_SET, "4", *TOPICS)
    assert 0 < len(refusals) < len(TOPICS), "logs lie on both nodes"
    assert sorted(held) == [3] * len(refusals) + [4] * (len(TOPICS) - len(refusals))
    assert all("lives in store" in refusal for refusal in refusals)

    worker.boot(worker.other_address())
    ray_nodes.start_worker(worker)
    assert head.ask(_SET, "5", *TOPICS) == [[5] * len(TOPICS), []]


@pytest.mark.timeout(400)
def test_a_lost_catalog_is_rebuilt_with_the_topics_and_policies_of_all_nodes(ray_nodes: RayNodes) -> None:
    worker, head = ray_nodes.add_worker(), ray_nodes.head
    # Of a topic that was never used nothing is stored but its name.
    head.ask(_SEND, *TOPICS)
    assert head.ask(_SET, "3", *TOPICS) == [[3] * len(TOPICS), []]
    assert all(node.run("ls", f"{DATA_DIR}/p").stdout.split() for node in (head, worker)), "logs lie on both"
    head.run("pulsar-ray", "stop")
    head.run("sh", "-c", f"rm {DATA_DIR}/meta.sqlite*")

    refused = head.run("pulsar-ray", "start", check=False)
    assert refused.returncode == 1
    assert "--rebuild-catalog" in refused.stdout
    head.run("pulsar-ray", "start", "--rebuild-catalog")
    ray_nodes.wait_for_stores()

    assert ray_nodes.admin("topics.list") == [f"persistent://public/default/{name}" for name in TOPICS]
    assert worker.ask(_GET, *TOPICS) == [3] * len(TOPICS)
    assert worker.ask(_SET, "4", *TOPICS) == [[4] * len(TOPICS), []]
