"""Measure what shipping into an object store costs: receipts, publishing, and how many objects are written.

The object store is an S3 server of this machine (moto, in Python, on the same processors), whose own PUT is
the floor in the same run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pulsar_ray
from benchmarks.measuring.environment import Broker, Environment, Skipped
from benchmarks.measuring.measure import alternate, p50, rate
from benchmarks.measuring.results import Row
from pulsar_ray.journal.shipping import Cut
from pulsar_ray.journal.storage.bucket import open_object_store
from pulsar_ray.journal.store_journal import StoreJournal

URL = "s3://bucket/bench"
LOST_URL = "s3://bucket/lost"
MESSAGE = b"x" * 1024
ROUNDS = 7
MOST_OVER_PUT_MS = 7.0
LEAST_OF_OFF = 0.9
LEAST_OF_PUTS = 0.7
PARTITION_BYTES = 10 << 20
MOST_ADOPTING_S = 10.0
IDLE_S = 3.0


@contextmanager
def s3_server() -> Iterator[None]:
    """Run a server with a bucket, and let this process and all of Ray's find it."""
    try:
        import boto3  # noqa: PLC0415 - only this group needs it
        import moto.server  # noqa: F401, PLC0415
    except ImportError:
        raise Skipped("moto and boto3 are not installed") from None
    port = "5599"
    command = [sys.executable, "-m", "moto.server", "-p", port]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    endpoint = f"http://127.0.0.1:{port}"
    os.environ.update(keys | {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true"})
    try:
        _until_listening(int(port))
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield
    finally:
        server.kill()
        server.wait()


def _until_listening(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)
    raise TimeoutError("moto does not listen")


def run(env: Environment) -> list[Row]:
    """Publish with each durability by turns, then count objects."""
    with s3_server():
        puts = _puts_ms(env.count(200, 30))
        with env.broker(remote_url=URL) as broker, pulsar_ray.Admin() as admin:
            until_ready(admin)
            rows = [
                _sync_receipts(env, broker, admin, puts),
                *_publishing(env, broker, admin),
                _sync_throughput(env, broker, admin),
                _idle(admin),
                _busy(env, broker, admin, 1),
                _busy(env, broker, admin, 20),
            ]
        # As many processes as partitions would be another measurement: those that are done go to sleep.
        with (
            env.broker(remote_url=LOST_URL, idle_actor_passivation_seconds=3) as broker,
            pulsar_ray.Admin() as admin,
        ):
            until_ready(admin)
            return [*rows, _adopting(env, broker, admin)]


def _puts_ms(count: int) -> float:
    store = open_object_store("s3://bucket/floor")
    times = []
    for number in range(count):
        begin = time.perf_counter()
        store.create(f"object/{number}", MESSAGE)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1000


def until_ready(admin: pulsar_ray.Admin) -> None:
    deadline = time.monotonic() + 60
    while not all(state.is_ready for state in admin.stores.remote()):
        if time.monotonic() > deadline:
            raise TimeoutError("the journal of the store does not begin")
        time.sleep(0.1)


def _topic(broker: Broker, admin: pulsar_ray.Admin, durability: str) -> str:
    topic: str = broker.topic()
    admin.topics.create_topic(topic)
    admin.topics.policies.set(topic, "remote_durability", durability)
    return topic


def _sync_receipts(env: Environment, broker: Broker, admin: pulsar_ray.Admin, put_ms: float) -> Row:
    producer = broker.client.create_producer(_topic(broker, admin, "sync"))
    times = []
    for _ in range(env.count(200, 30)):
        begin = time.perf_counter()
        producer.send(MESSAGE)
        times.append(time.perf_counter() - begin)
    producer.close()
    ours_ms = statistics.median(times) * 1000
    over = ours_ms - put_ms
    what = "sync: send, 1 KiB, p50, over one PUT (ms)"
    return Row(what, f"{ours_ms:.1f} ms", f"{put_ms:.1f} ms", over, MOST_OVER_PUT_MS, at_most=True)


def _publishing(env: Environment, broker: Broker, admin: pulsar_ray.Admin) -> list[Row]:
    messages = env.count(20_000, 1_000)
    ways = ("off", "async", "sync")
    producers = {
        way: broker.client.create_producer(
            _topic(broker, admin, way),
            block_if_queue_full=True,
            batching_enabled=True,
            max_pending_messages=20_000,
        )
        for way in ways
    }

    def publish(producer: pulsar_ray.Producer) -> None:
        for _ in range(messages):
            producer.send_async(MESSAGE, None)
        producer.flush()

    works = {way: lambda producer=producer: publish(producer) for way, producer in producers.items()}
    times = alternate(works, ROUNDS, warm_up=1)
    rows = []
    for way in ("async", "sync"):
        ratio = p50([off / on for on, off in zip(times[way], times["off"], strict=True)])
        took, floor = p50(times[way]) / messages, p50(times["off"]) / messages
        limit = LEAST_OF_OFF if way == "async" else None
        rows.append(
            Row(f"{way}: publish batched, 1 KiB, of off", rate(1, took), rate(1, floor), ratio, limit)
        )
    for producer in producers.values():
        producer.close()
    return rows


def _sync_throughput(env: Environment, broker: Broker, admin: pulsar_ray.Admin) -> Row:
    """Publish with `sync`, against what the server takes in the largest objects, as many at once."""
    cut = Cut()
    objects = env.count(8, 4)
    body, store = os.urandom(cut.object_bytes), open_object_store("s3://bucket/most")
    producer = broker.client.create_producer(
        _topic(broker, admin, "sync"),
        block_if_queue_full=True,
        batching_enabled=True,
        max_pending_messages=2 * cut.under_way * cut.object_bytes // len(MESSAGE),
    )
    messages = objects * cut.object_bytes // len(MESSAGE)
    numbers = itertools.count()

    def put() -> None:
        with ThreadPoolExecutor(cut.under_way) as threads:
            assert all(threads.map(lambda _: store.create(f"object/{next(numbers)}", body), range(objects)))

    def publish() -> None:
        for _ in range(messages):
            producer.send_async(MESSAGE, None)
        producer.flush()

    times = alternate({"most": put, "sync": publish}, ROUNDS, warm_up=1)
    producer.close()
    megabytes = objects * cut.object_bytes / 1e6
    ratio = p50([most / ours for most, ours in zip(times["most"], times["sync"], strict=True)])
    ours, most = (f"{megabytes / p50(times[what]):.0f} MB/s" for what in ("sync", "most"))
    return Row("sync: publish batched, 1 KiB, of 8 MiB PUTs, 8 at once", ours, most, ratio, LEAST_OF_PUTS)


def _adopting(env: Environment, broker: Broker, admin: pulsar_ray.Admin) -> Row:
    """Take partitions over as another node does, from the word until all of them are restored."""
    partitions = env.count(100, 10)
    for _ in range(partitions):
        producer = broker.client.create_producer(
            broker.topic(), block_if_queue_full=True, max_pending_messages=20_000
        )
        for _ in range(PARTITION_BYTES // len(MESSAGE)):
            producer.send_async(MESSAGE, None)
        producer.flush()
        producer.close()
    (state,) = admin.stores.remote()
    deadline = time.monotonic() + 300
    while admin.stores.remote()[0].waiting_bytes and time.monotonic() < deadline:
        time.sleep(0.1)
    with env.directory() as directory:
        journal = StoreJournal(directory, "adopting", LOST_URL)
        try:
            journal.wait_ready(60)
            while len(journal.owned_by(state.store_id)) < partitions and time.monotonic() < deadline:
                time.sleep(0.1)
            begin = time.perf_counter()
            adopted = journal.adopt(journal.seal(state.store_id))
            took = time.perf_counter() - begin
        finally:
            journal.stop()
    assert len(adopted) >= partitions
    what = f"taking over {partitions} partitions of {PARTITION_BYTES >> 20} MiB (s)"
    return Row(what, f"{took:.1f} s", "", took, MOST_ADOPTING_S, at_most=True)


def _puts(admin: pulsar_ray.Admin) -> int:
    return sum(state.puts for state in admin.stores.remote())


def _idle(admin: pulsar_ray.Admin) -> Row:
    deadline, before = time.monotonic() + 60, -1
    # The messages of the lines before are folded into pieces for a while.
    while (now := _puts(admin)) != before and time.monotonic() < deadline:
        before = now
        time.sleep(1.0)
    time.sleep(IDLE_S)
    return Row(
        "PUTs of an idle node in 3 s",
        str(_puts(admin) - before),
        "",
        float(_puts(admin) - before),
        0,
        at_most=True,
    )


def _busy(env: Environment, broker: Broker, admin: pulsar_ray.Admin, partitions: int) -> Row:
    topic: str = broker.topic()
    admin.topics.create_partitioned_topic(topic, partitions)
    producer = broker.client.create_producer(topic)
    for _ in range(2 * partitions):
        producer.send(MESSAGE)
    seconds = max(1.0, 4.0 * env.scale)
    before, begin = _puts(admin), time.monotonic()
    while time.monotonic() < begin + seconds:
        producer.send(MESSAGE)
    count = (_puts(admin) - before) / (time.monotonic() - begin)
    producer.close()
    return Row(f"async: PUTs a second, {partitions} busy partitions", f"{count:.1f}", "", count)
