"""One catalog for a cluster of several nodes, whoever asks, and whatever is not mounted."""

from __future__ import annotations

import json

from pulsar_ray.testing.waiting import wait_until
from tests.nodes.ray_nodes import PORT, RayNodes
from tests.nodes.ray_nodes import start_ray as start_ray_on
from tests.nodes.world import DATA_DIR, SHARED, Node, World

_SEND = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    client.create_producer(sys.argv[1]).send(sys.argv[2].encode())
answer(True)
"""
_STORED = """
import sys, pulsar_ray
with pulsar_ray.Client() as client:
    reader = client.create_reader(sys.argv[1], pulsar_ray.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(30_000).data().decode())
answer(found)
"""
_STRAY = """
import sys, pulsar_ray
from pulsar_ray.errors import BrokerNotFounded
try:
    pulsar_ray.Client(data_dir="/tmp/elsewhere").create_producer("x")
except BrokerNotFounded as error:
    answer(str(error))
"""
STORES_AWAY = 3


def start_ray(nodes: RayNodes, node: Node, *more: str) -> None:
    """On a node that is up, without waiting for its store."""
    if node is nodes.head:
        place = ["--head", f"--port={PORT}", *(more or ("--include-dashboard=false",))]
    else:
        place = [f"--address={nodes.head.address}:{PORT}"]
    start_ray_on(node, *place)


def status(nodes: RayNodes) -> tuple[int, str]:
    done = nodes.head.run("pulsar-ray", "status", check=False)
    return done.returncode, done.stdout


_JOB = """
import importlib.util, os, pulsar_ray
assert os.environ["OF_THE_JOB"] == "1" and importlib.util.find_spec("of_the_job")
with pulsar_ray.Client() as client:
    client.create_producer("jobs").send(b"x")
    client.subscribe("jobs", "s")
"""
_COLOURS = """
import pulsar_ray, ray
from pulsar_ray.transport.this_ray import running_names
from pulsar_ray.launch.connect import join_ray
from pulsar_ray.transport.actor_names import NAMESPACE

def seen(_actor):
    import importlib.util, os
    return os.environ.get("OF_THE_JOB"), importlib.util.find_spec("of_the_job") is not None

join_ray("auto")
handles = [ray.get_actor(name, namespace=NAMESPACE) for name in running_names()]
answer(ray.get([handle.__ray_call__.remote(seen) for handle in handles]))
"""


def test_what_a_submitted_job_brings_does_not_reach_the_broker_that_it_brings_up(world: World) -> None:
    nodes = RayNodes(world)
    start_ray(nodes, nodes.head, "--include-dashboard=true", "--dashboard-port=8265")
    nodes.head.run("pulsar-ray", "start")
    nodes.head.run("pulsar-ray", "stop")
    directory = world.shared / "job"
    directory.mkdir()
    (directory / "of_the_job.py").touch()
    (directory / "job.py").write_text(_JOB)

    nodes.head.run(
        *("ray", "job", "submit", "--address=http://127.0.0.1:8265", f"--working-dir={SHARED}/job"),
        *("--runtime-env-json", json.dumps({"env_vars": {"OF_THE_JOB": "1"}}), "--", "python", "job.py"),
    )

    colours = nodes.head.ask(_COLOURS)
    assert len(colours) == 4
    assert {tuple(colour) for colour in colours} == {(None, False)}


def test_a_client_anywhere_brings_up_the_one_broker(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.head.ask(_SEND, "orders", "of the head")
    ray_nodes.head.run("pulsar-ray", "stop")
    assert "pulsar-ray start" in worker.ask(_STRAY)

    worker.ask(_SEND, "parcels", "of the worker")

    assert ray_nodes.admin("broker")["catalog_host"] == ray_nodes.head.name
    assert not (worker.disk / "meta.sqlite").exists()
    topics = [f"persistent://public/default/{name}" for name in ("orders", "parcels")]
    assert ray_nodes.admin("topics.list") == topics
    assert worker.ask(_STORED, "orders") == ["of the head"]
    assert ray_nodes.head.ask(_STORED, "parcels") == ["of the worker"]


def test_an_unmounted_disk_is_reported_and_not_replaced(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.admin("topics.create_partitioned_topic", "spread", 4)
    assert status(ray_nodes)[0] == 0
    worker.kill()
    worker.boot(mounts_disk=False)
    start_ray(ray_nodes, worker)
    refused = worker.run("pulsar-ray", "init-store", DATA_DIR, check=False)
    assert refused.returncode == 1
    assert "mount its disk" in refused.stdout

    wait_until(lambda: "this node had store" in status(ray_nodes)[1], 90, "a report")
    code, said = status(ray_nodes)
    assert code == STORES_AWAY
    assert f"no store works on {worker.name}, in {DATA_DIR}" in said
    ray_nodes.admin("topics.create_partitioned_topic", "later", 4)
    assert not worker.run("ls", DATA_DIR).stdout.split()

    worker.kill()
    worker.boot()
    ray_nodes.start_worker(worker)
    assert status(ray_nodes)[0] == 0
    # The next start uses what it is given everywhere, although one was refused before.
    ray_nodes.head.run("pulsar-ray", "stop")
    ray_nodes.head.run("pulsar-ray", "start")
    assert len(ray_nodes.admin("broker")["stores"]) == 2


def test_without_the_disk_of_the_catalog_nothing_is_served(ray_nodes: RayNodes) -> None:
    worker = ray_nodes.add_worker()
    ray_nodes.head.ask(_SEND, "orders", "kept")
    for node in (ray_nodes.head, worker):
        node.kill()
    ray_nodes.head.boot(mounts_disk=False)
    worker.boot()
    start_ray(ray_nodes, ray_nodes.head)
    start_ray(ray_nodes, worker)

    refused = ray_nodes.head.run("pulsar-ray", "start", check=False)

    assert refused.returncode == 1
    assert f"there are stores: {worker.name}:{DATA_DIR}" in refused.stdout
    assert f"It was on {ray_nodes.head.name}" in refused.stdout
    assert not ray_nodes.head.run("ls", DATA_DIR).stdout.split()
    for node in (ray_nodes.head, worker):
        node.kill()
        node.boot()
        start_ray(ray_nodes, node)
    assert worker.ask(_STORED, "orders") == ["kept"]
