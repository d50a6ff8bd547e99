"""Who may begin a broker and where its catalog is, on Rays that the programs did not start themselves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

PROCESS_S = 300.0

_RAY = """
import sys, ray
context = ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""
_BEGIN = """
import json, os, sys
from pathlib import Path
import pulsar_ray
from pulsar_ray import Admin, Client, MessageId
from pulsar_ray.launch.connect import join_ray
from pulsar_ray.broker.catalog.founding import StartPermission
from pulsar_ray.launch.start import start_broker, stop_broker
from pulsar_ray.config import Settings
from pulsar_ray.errors import BrokerNotFounded, CatalogMissing, NotOurDataDirectory

address, data_dir = sys.argv[1], Path(sys.argv[2])
settings = Settings(data_dir=str(data_dir))

def refused(error, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error as refusal:
        return str(refusal)
    raise AssertionError(f"{call} was not refused")

def connect(directory=data_dir, **options):
    return Client(address, data_dir=directory, **options).get_topic_partitions("looked-up")

def numbers():
    return sorted(int(path.name) for path in (data_dir / "p").iterdir() if path.name.isdigit())

def stored(topic):
    with Client(address, data_dir=data_dir) as client:
        reader = client.create_reader(topic, MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
        reader.close()
        return found

def send(topic, value):
    with Client(address, data_dir=data_dir) as client:
        producer = client.create_producer(topic)
        producer.send(value)
        producer.close()
"""
_FOUNDING = (
    _BEGIN
    + """
# A program that comes along founds nothing, neither here nor in another place.
assert "pulsar-ray start" in refused(BrokerNotFounded, connect)
assert not data_dir.exists()
join_ray(address)
described = start_broker(settings, StartPermission(may_found=True))
send("first", b"1")
send("second", b"2")
assert stop_broker()
elsewhere = data_dir.with_name("elsewhere")
assert str(elsewhere) in refused(BrokerNotFounded, connect, elsewhere)
assert not elsewhere.exists()

# What lies here comes up by itself.
assert stored("first") == [b"1"]
with Admin(address) as admin:
    again = admin.broker()
assert again["cluster_id"] == described["cluster_id"] and again["stores"] == described["stores"]
assert again["refused_stores"] == again["away_stores"] == again["unknown_partitions"] == []

# Everything in it is closed to others.
paths = [data_dir, *data_dir.rglob("*")]
assert len(paths) > 10
opened = [path for path in paths if path.stat().st_mode & 0o077]
assert not opened, opened
assert stop_broker()
print("done")
"""
)
_IN_A_TASK = """
import sys
import ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)

@ray.remote
def use(data_dir):
    import pulsar_ray
    with pulsar_ray.Client(data_dir=data_dir) as client:
        consumer = client.subscribe("t", "s")
        client.create_producer("t").send(b"1")
        return consumer.receive(60_000).data()

assert ray.get(use.remote(sys.argv[1])) == b"1"
ray.shutdown()
print("done")
"""
_LOSING = (
    _BEGIN
    + """
join_ray(address)
start_broker(settings, StartPermission(may_found=True))
send("first", b"1")
send("second", b"2")
assert stop_broker()

# A lost catalog is not made anew in silence, but on somebody's word; with other numbers.
for lost in data_dir.glob("meta.sqlite*"):
    lost.unlink()
had = numbers()
assert "--rebuild-catalog" in refused(CatalogMissing, connect)
assert "--rebuild-catalog" in refused(CatalogMissing, start_broker, settings, StartPermission(may_found=True))
assert not (data_dir / "meta.sqlite").exists()
(data_dir / "p" / str(had[0])).rename(data_dir / "hidden")
start_broker(settings, StartPermission(may_found=True, may_rebuild=True))
assert stored("second") == [b"2"]
send("first", b"another")
send("third", b"3")
assert [number for number in numbers() if number not in had and number < 1 << 31] == []
assert stop_broker()

# What was hidden comes back: it is told apart, and each topic has its own messages.
(data_dir / "hidden").rename(data_dir / "p" / str(had[0]))
assert stored("first") == [b"another"]
with Admin(address) as admin:
    (unknown,) = admin.broker()["unknown_partitions"]
assert unknown["topic"].endswith("/first") and unknown["number"] == had[0] and unknown["name_is_taken"]
assert stop_broker()

# A directory that was put in another one's place is not served.
new = numbers()[-1]
(data_dir / "p" / str(new)).rename(data_dir / "aside")
(data_dir / "p" / str(had[0])).rename(data_dir / "p" / str(new))
assert "holds persistent://public/default/first" in refused(NotOurDataDirectory, send, "third", b"x")
assert stop_broker()
print("done")
"""
)
_COLOURED = """
import os, sys, tempfile
from pathlib import Path
import ray, pulsar_ray
from pulsar_ray.transport.actor_names import NAMESPACE
from pulsar_ray.launch.start import stop_broker

directory = Path(tempfile.mkdtemp())
(directory / "of_the_job.py").write_text("")
options = {"env_vars": {"OF_THE_JOB": "1"}, "working_dir": str(directory)}
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=options)

def seen(_actor):
    import importlib.util, os, sys
    found = importlib.util.find_spec("of_the_job") is not None
    return os.environ.get("OF_THE_JOB"), found, os.getcwd()

@ray.remote(num_cpus=0)
def in_the_job():
    return seen(None)

assert ray.get(in_the_job.remote())[:2] == ("1", True)
client = pulsar_ray.Client(data_dir=sys.argv[1], allow_founding=True)
client.create_producer("t").send(b"x")
client.subscribe("t", "s")
client.close()
actors = ray.util.list_named_actors(all_namespaces=True)
names = [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]
assert len(names) == 4, names
for name in names:
    actor = ray.get_actor(name, namespace=NAMESPACE)  # old versions of Ray need the handle to live
    colour = ray.get(actor.__ray_call__.remote(seen))
    assert colour[:2] == (None, False), (name, colour)
stop_broker()
ray.shutdown()
print("done")
"""


def run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stderr


@pytest.fixture
def ray_elsewhere() -> Iterator[str]:
    """The address of a Ray that the programs of a test do not start."""
    with subprocess.Popen(
        [sys.executable, "-c", _RAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        assert cluster.stdout is not None
        try:
            yield cluster.stdout.readline().strip()
        finally:
            cluster.communicate(timeout=PROCESS_S)


@pytest.mark.long
def test_a_broker_is_begun_on_a_word_and_found_without(ray_elsewhere: str, tmp_path: Path) -> None:
    run(_FOUNDING, ray_elsewhere, str(tmp_path / "data"))


@pytest.mark.long
def test_what_is_lost_and_comes_back_is_never_mixed(ray_elsewhere: str, tmp_path: Path) -> None:
    run(_LOSING, ray_elsewhere, str(tmp_path / "data"))


@pytest.mark.long
def test_a_task_may_begin_a_broker_on_the_ray_of_its_program(tmp_path: Path) -> None:
    run(_IN_A_TASK, str(tmp_path / "data"))


@pytest.mark.long
def test_the_environment_of_a_job_does_not_reach_the_broker(tmp_path: Path) -> None:
    run(_COLOURED, str(tmp_path / "data"))
