"""A killed broker without its disk comes back from the object store with all that was confirmed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from pulsar_ray.launch.embedded import stop_embedded
from pulsar_ray.testing.waiting import wait_until
from tests.ending_processes import is_gone, kill
from tests.unit.journal.s3_server import s3_server

# Two Rays are started in each test, one after the other.
pytestmark = pytest.mark.timeout(600)

TIMEOUT_S = 180.0
MESSAGES = 40
ACKNOWLEDGED = 15

_WORK = """
import json, sys, pulsar_ray
from datetime import timedelta
data_dir, durability, count, acknowledged = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
admin = pulsar_ray.Admin("local", data_dir=data_dir)
admin.namespaces.policies.set("public/default", "remote_durability", durability)
admin.topics.create_partitioned_topic("orders", 2)
client = pulsar_ray.Client("local", data_dir=data_dir)
consumer = client.subscribe("orders", "audit", consumer_type=pulsar_ray.ConsumerType.KeyShared)
producer = client.create_producer("orders", producer_name="p")
sent = {}
for i in range(count):
    at = producer.send(b"%d" % i, partition_key=f"k{i % 5}")
    sent[i] = str(at)
producer.send(b"late", partition_key="k0", deliver_after=timedelta(seconds=1))
seen = []
for _ in range(acknowledged):
    message = consumer.receive(30_000)
    consumer.acknowledge(message)
    seen.append(int(message.data()))
consumer.close()
print(json.dumps({"sent": sent, "acknowledged": seen}), flush=True)
sys.stdin.read()
"""
_REST = """
import json, sys, pulsar_ray
data_dir, expected = sys.argv[1], int(sys.argv[2])
client = pulsar_ray.Client("local", data_dir=data_dir)
consumer = client.subscribe("orders", "audit", consumer_type=pulsar_ray.ConsumerType.KeyShared)
got = []
while len(got) < expected:
    message = consumer.receive(60_000)
    consumer.acknowledge(message)
    got.append([message.data().decode(), str(message.message_id()), message.partition_key()])
admin = pulsar_ray.Admin("local", data_dir=data_dir)
policy = admin.namespaces.policies.get("public/default", "remote_durability").value
again = client.create_producer("orders", producer_name="p").send(b"new", partition_key="k1")
remote = admin.stores.remote()
answer = {"got": got, "policy": policy, "new": str(again), "url": remote[0].url, "problem": remote[0].problem}
print(json.dumps(answer), flush=True)
"""


def standalone(data_dir: Path, *options: str) -> list[str]:
    command = [sys.executable, "-c", "from pulsar_ray.cli.main import main; main()"]
    return [*command, "standalone", "--data-dir", str(data_dir), *options]


class Broker:
    """`pulsar-ray standalone` with all of its processes."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            standalone(data_dir, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        said = []
        while not (line := self.process.stdout.readline()).startswith("dashboard"):
            said.append(line)
            if not line:
                pytest.fail(f"standalone ended: {said}")

    def run(self, program: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, str(self.data_dir), *map(str, arguments)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> None:
        """Stop it in order."""
        stop_embedded(self.data_dir)
        self.process.communicate(timeout=TIMEOUT_S)

    def kill(self) -> None:
        """Kill -9 every process of it."""
        owned = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        for each in owned:
            kill(each)
        wait_until(lambda: all(map(is_gone, owned)), TIMEOUT_S, "all are dead")
        _end_ray_of(self.data_dir)
        self.process.communicate(timeout=TIMEOUT_S)


def _end_ray_of(data_dir: Path) -> None:
    """Kill what has moved away from its parents, and wait until nobody has the directory."""

    def left() -> list[psutil.Process]:
        return [each for each in psutil.process_iter() if _names(each, str(data_dir))]

    for each in left():
        each.kill()
    wait_until(lambda: not left(), TIMEOUT_S, "nothing of the broker is left")


def _names(process: psutil.Process, text: str) -> bool:
    try:
        return process.pid != os.getpid() and text in " ".join(process.cmdline())
    except psutil.Error:
        return False


@contextmanager
def _s3(patch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3_server() as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
        }.items():
            patch.setenv(name, value)
        yield "s3://bucket/cluster"


# Other tests here and of offloading ship to a directory.
@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "file":
        yield (tmp_path / "shared").as_uri()
    else:
        with _s3(monkeypatch) as address:
            yield address


def _answer(program: subprocess.Popen[str]) -> dict[str, Any]:
    assert program.stdout is not None
    line = program.stdout.readline()
    assert line, "the program ended without an answer"
    answer: dict[str, Any] = json.loads(line)
    return answer


@pytest.mark.long
def test_what_was_confirmed_comes_back_without_any_disk(tmp_path: Path, url: str) -> None:
    first = Broker(tmp_path / "first", "--remote", url)
    work = first.run(_WORK, "sync", MESSAGES, ACKNOWLEDGED)
    try:
        before = _answer(work)
    finally:
        work.kill()
        work.communicate()
        first.kill()
    shutil.rmtree(first.data_dir)
    second = Broker(tmp_path / "second", "--from", url)
    try:
        rest = second.run(_REST, MESSAGES - ACKNOWLEDGED + 1)
        after = _answer(rest)
        rest.communicate(timeout=TIMEOUT_S)
    finally:
        second.end()
    ids = {int(data): at for data, at, _ in after["got"] if data != "late"}
    assert ids == {int(i): at for i, at in before["sent"].items() if int(i) not in before["acknowledged"]}
    assert "late" in {data for data, _, _ in after["got"]}
    for key in {key for _, _, key in after["got"]}:
        order = [int(data) for data, _, of in after["got"] if of == key and data != "late"]
        assert order == sorted(order)
    assert after["policy"] == {"remote_durability": "sync"}
    assert after["new"] not in before["sent"].values()
    assert (after["url"], after["problem"]) == (url, "")


@pytest.mark.long
def test_a_second_broker_does_not_take_the_place_of_one_that_ships(tmp_path: Path) -> None:
    url = (tmp_path / "shared").as_uri()
    first = Broker(tmp_path / "first", "--remote", url)
    try:
        work = first.run(_SHIPS)
        assert _answer(work) == {}
        command = standalone(tmp_path / "second", "--from", url)
        refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert refused.returncode == 1
        assert "a cluster lives there" in refused.stderr
        work.kill()
        work.communicate()
    finally:
        first.kill()


_SHIPS = """
import sys, threading, pulsar_ray
client = pulsar_ray.Client("local", data_dir=sys.argv[1])
producer = client.create_producer("public/default/t")
producer.send(b"0")
print("{}", flush=True)
while True:
    producer.send(b"more")
"""


_WHILE_AWAY = """
import json, os, sys, pulsar_ray
from pulsar_ray.errors import PulsarException
data_dir, shared = sys.argv[1], sys.argv[2]
admin = pulsar_ray.Admin("local", data_dir=data_dir)
client = pulsar_ray.Client("local", data_dir=data_dir)
producer = client.create_producer("known")
producer.send(b"before")
os.rename(shared, shared + ".away")
open(shared, "w").close()
answer = {"refused": []}
for _ in range(10):
    producer.send(b"meanwhile")
answer["known"] = admin.topics.stats("known")["msgInCounter"]
for change in (admin.topics.create_topic, admin.topics.create_topic):
    try:
        change("new")
    except PulsarException as error:
        answer["refused"].append([type(error).__name__, error.retriable])
os.remove(shared)
os.rename(shared + ".away", shared)
while True:
    try:
        admin.topics.create_topic("newest")
        break
    except PulsarException as error:
        assert error.retriable, error
answer["topics"] = [name.rpartition("/")[2] for name in admin.topics.list("public/default")]
print(json.dumps(answer), flush=True)
"""


@pytest.mark.long
def test_while_the_object_store_is_away_nothing_is_decided_and_publishing_goes_on(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    broker = Broker(tmp_path / "data", "--remote", shared.as_uri())
    try:
        program = broker.run(_WHILE_AWAY, shared)
        answer = _answer(program)
        program.communicate(timeout=TIMEOUT_S)
    finally:
        broker.end()
    assert answer["refused"] == [["RemoteStoreUnavailable", True]] * 2
    assert answer["known"] == 11
    # The first may have been decided once it came back; the last was.
    assert {"known", "newest"} <= set(answer["topics"]) <= {"known", "new", "newest"}


_DEPOSED = """
import json, sys, time, pulsar_ray
from pathlib import Path
from pulsar_ray.errors import PulsarException
from pulsar_ray.journal.at_once import carried_out
from pulsar_ray.journal.decisions import DecisionLog
from pulsar_ray.journal.storage.file_store import FileStore
data_dir, shared = sys.argv[1], sys.argv[2]
admin = pulsar_ray.Admin("local", data_dir=data_dir)
client = pulsar_ray.Client("local", data_dir=data_dir)
producer = client.create_producer("t")
before = admin.broker()["pid"]
carried_out(DecisionLog(lambda: b"other").begin(None), FileStore(Path(shared)), time.sleep)
refused = []
while True:
    try:
        admin.topics.create_topic("u")
        break
    except PulsarException as error:
        refused.append(error.retriable)
producer.send(b"on")
answer = {"refused": refused, "is_another": admin.broker()["pid"] != before}
print(json.dumps(answer), flush=True)
"""


@pytest.mark.long
def test_a_controller_in_whose_place_another_has_begun_ends_and_one_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULSAR_RAY_NODE_LOSS_SECONDS", "5")
    shared = tmp_path / "shared"
    broker = Broker(tmp_path / "data", "--remote", shared.as_uri())
    try:
        program = broker.run(_DEPOSED, shared)
        answer = _answer(program)
        program.communicate(timeout=TIMEOUT_S)
    finally:
        broker.end()
    assert all(answer["refused"])
    assert answer["is_another"]
