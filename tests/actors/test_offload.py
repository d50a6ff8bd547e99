"""What is only in the object store outlives every kill, and the disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.actors.test_remote import TIMEOUT_S, Broker, _answer

pytestmark = pytest.mark.timeout(600)

MESSAGES = 120
_WORK = """
import json, os, signal, sys, time, pulsar_ray
from pulsar_ray.testing.waiting import wait_until
data_dir, count = sys.argv[1], int(sys.argv[2])
admin = pulsar_ray.Admin("local", data_dir=data_dir)
client = pulsar_ray.Client("local", data_dir=data_dir)
client.subscribe("orders", "audit").close()
producer = client.create_producer("orders")
sent = [str(producer.send(b"%d " % i * 3000)) for i in range(count)]
admin.topics.offload("orders")
if sys.argv[3] == "at once":
    os.kill(admin.topics.stats("orders")["pid"], signal.SIGKILL)
def offloaded():
    status = admin.topics.offload_status("orders")
    if status["status"] in ("ERROR", "NOT_RUN"):
        admin.topics.offload("orders")
    return status if status["status"] == "SUCCESS" and status["offloaded_segments"] > 5 else None
status = wait_until(offloaded, 60)
os.kill(admin.topics.stats("orders")["pid"], signal.SIGKILL)
consumer = client.subscribe("orders", "audit")
seen = [consumer.receive(60_000) for _ in range(count)]
got = [int(message.data().split()[0]) for message in seen]
print(json.dumps({"sent": sent, "got": got, "status": status}), flush=True)
sys.stdin.read()
"""
_REST = """
import json, sys, pulsar_ray
data_dir, count = sys.argv[1], int(sys.argv[2])
client = pulsar_ray.Client("local", data_dir=data_dir)
consumer = client.subscribe("orders", "audit")
seen = [consumer.receive(60_000) for _ in range(count)]
got = [[int(message.data().split()[0]), str(message.message_id())] for message in seen]
status = pulsar_ray.Admin("local", data_dir=data_dir).topics.offload_status("orders")
print(json.dumps({"got": got, "status": status}), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("when", ["at once", "later"])
def test_offloaded_messages_outlive_kills_and_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv("PULSAR_RAY_SEGMENT_SIZE_BYTES", str(64 * 1024))
    monkeypatch.setenv("PULSAR_RAY_INDEX_CHECKPOINT_BYTES", str(64 * 1024))
    url = (tmp_path / "shared").as_uri()
    first = Broker(tmp_path / "first", "--remote", url)
    work = first.run(_WORK, MESSAGES, when)
    try:
        before = _answer(work)
    finally:
        work.kill()
        work.communicate()
        first.kill()
    assert before["got"] == list(range(MESSAGES))
    shutil.rmtree(first.data_dir)
    second = Broker(tmp_path / "second", "--from", url)
    try:
        rest = second.run(_REST, MESSAGES)
        after = _answer(rest)
        rest.communicate(timeout=TIMEOUT_S)
    finally:
        second.end()
    assert after["got"] == [[number, at] for number, at in enumerate(before["sent"])]
    assert after["status"]["offloaded_segments"] >= before["status"]["offloaded_segments"]
