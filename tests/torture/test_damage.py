"""Files that are damaged under actors that stand still, while the rest of the broker goes on."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pulsar_ray import ConsumerType, InitialPosition, MessageId
from pulsar_ray.broker.partition.partition_server import PartitionServer
from pulsar_ray.errors import PulsarException, Timeout
from pulsar_ray.format.segment import SEGMENT_HEADER_SIZE
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.maintenance.verify import verify_directory
from pulsar_ray.managed_ledger.log.manifest.manifest_log import NOTHING, read_manifest
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.model.message_id import Position
from pulsar_ray.testing.stub_cluster import STORE
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.actor_names import topic_of_actor
from tests.torture.damage import CURSOR, MANIFEST, SEGMENT, TRACKER, cut, flip, part_of
from tests.torture.serving import BILLS, MESSAGES, ORDERS, QUIET_MS, SUBSCRIPTION, Serving

DELAYED, DELAY_MS = 40, 5_000


def publish_delayed(serving: Serving) -> list[bytes]:
    """Messages that are due soon, more than a tracker keeps in memory."""
    producer = serving.client.create_producer(ORDERS, batching_enabled=False)
    due_ms = time.time_ns() // 1_000_000 + DELAY_MS
    values = [b"delayed %d" % number for number in range(DELAYED)]
    for value in values:
        producer.send_async(value, None, deliver_at=due_ms)
    producer.flush()
    return values


def consume_all(serving: Serving, topic: str) -> tuple[list[bytes], str]:
    """What the subscription gives until it is silent, and the error that ended it."""
    values: list[bytes] = []
    try:
        consumer = serving.client.subscribe(
            topic, SUBSCRIPTION, ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        while True:
            values.append(consumer.receive(QUIET_MS + DELAY_MS).data())
    except Timeout:
        return values, ""
    except PulsarException as error:
        return values, str(error)


@pytest.mark.parametrize(
    ("harm", "part", "is_killed"),
    [
        (flip, SEGMENT, False),
        (cut, CURSOR, True),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (flip, TRACKER, True),
                (cut, MANIFEST, True),
                (cut, SEGMENT, False),
                (cut, SEGMENT, True),
                (flip, CURSOR, True),
                (cut, TRACKER, True),
                (flip, MANIFEST, True),
            )
        ),
    ],
)
def test_what_was_damaged_meanwhile_is_named_and_nothing_of_it_is_given(
    tmp_path: Path, harm: Callable[[Path, random.Random], None], part: str, is_killed: bool
) -> None:
    seed = int(os.environ.get("TORTURE_SEED") or secrets.randbelow(1 << 31))
    print(f"seed {seed}")
    rng = random.Random(seed)
    serving = Serving(tmp_path)
    confirmed = list(serving.publish(ORDERS).values())
    bills = list(serving.publish(BILLS).values())
    acknowledged = serving.consume(ORDERS, MESSAGES // 2, MESSAGES // 2)
    # Open before they are sent: none of them is due before it is in the index.
    consumer = serving.client.subscribe(ORDERS, SUBSCRIPTION, ConsumerType.Shared)
    delayed = publish_delayed(serving)
    root = serving.cluster.partition(BILLS).directory.parent
    wait_until(lambda: files_of(root, TRACKER, least=2), what="an index of delayed messages")
    consumer.close()
    wait_until(lambda: is_end_recorded(serving, ORDERS), what="its recorded end")
    stop(serving, ORDERS, is_killed=is_killed)
    write_identity(tmp_path, StoreIdentity(STORE))
    harm(rng.choice(files_of(root, part)), rng)
    damages = verify_directory(tmp_path).damages
    assert all(damage.topic == ORDERS for damage in damages), damages
    start(serving, ORDERS)
    given, error = consume_all(serving, ORDERS)
    assert consume_all(serving, BILLS) == (bills, "")
    serving.end()

    waiting = set(confirmed) - set(acknowledged) | set(delayed)
    assert set(given) <= set(confirmed) | set(delayed)
    lost = waiting - set(given)
    assert not lost or damages, f"{len(lost)} are missing and nothing is named; {error}"
    again = set(given) & set(acknowledged)
    # A log of acknowledgments that ends early looks like one whose last write did not get through.
    assert (
        not again
        or (harm, part) == (cut, CURSOR)
        or any(damage.subscription == SUBSCRIPTION for damage in damages)
    ), again
    if part == TRACKER:
        assert not lost, "the index is made of the log again"
    if error:
        assert damages, error


def test_the_end_of_a_killed_log_that_was_cut_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serving = Serving(tmp_path)
    confirmed = list(serving.publish(ORDERS).items())
    wait_until(lambda: is_end_recorded(serving, ORDERS), what="its recorded end")
    newest = server_of(serving, ORDERS).ledger.segments()[-1]
    stop(serving, ORDERS, is_killed=True)
    # Right behind a frame, where nothing of the file is wrong.
    with SegmentReader(newest.path) as reader:
        frames = reader.read_frames(SEGMENT_HEADER_SIZE, newest.end_offset, newest.end_offset)
    at = len(frames) // 2
    newest.path.write_bytes(newest.path.read_bytes()[: frames[at].offset])
    first, last = frames[at].header.first_entry_id, newest.last_entry_id
    for _ in range(2):
        write_identity(tmp_path, StoreIdentity(STORE))
        [damage] = verify_directory(tmp_path).damages
        assert (damage.topic, damage.ledger_id) == (ORDERS, newest.ledger_id)
        assert (damage.first_entry_id, damage.last_entry_id) == (first, last)
        start(serving, ORDERS)
        later = list(serving.publish(ORDERS).values())
        assert server_of(serving, ORDERS).health()["damaged_ranges"] == 1
        assert f"confirmed entries {first} to {last} of ledger {newest.ledger_id}" in caplog.text
        stop(serving, ORDERS, is_killed=True)
    start(serving, ORDERS)
    given, error = consume_all(serving, ORDERS)
    serving.end()
    kept = [value for place, value in confirmed if place < MessageId(-1, newest.ledger_id, first, -1)]
    assert (given, error) == ([*kept, *later, *later], "")


def server_of(serving: Serving, topic: str) -> PartitionServer:
    server = serving.cluster.partition(topic).server
    assert isinstance(server, PartitionServer)
    return server


def is_end_recorded(serving: Serving, topic: str) -> bool:
    """Whether the manifest says how far the log is durable."""
    ledger = server_of(serving, topic).ledger
    content = read_manifest(ledger.directory)
    newest = content.newest if content is not None else NOTHING
    return Position(newest.ledger_id, newest.next_entry_id - 1) == ledger.last_position


def stop(serving: Serving, topic: str, *, is_killed: bool) -> None:
    """End the actors of a topic: asleep, which proves the end of the log, or killed and kept down."""
    cluster = serving.cluster
    if not is_killed:
        wait_until(lambda: cluster.put_to_sleep(topic, with_clients=True), what="its sleep")
        return
    for address in [each for each in cluster.addresses if topic_of_actor(each) == topic]:
        cluster.kill(address, keep_down=True)
    for name in [each for each in cluster.tracker_names if topic_of_actor(each) == topic]:
        cluster.actors.handles[name].kill()


def start(serving: Serving, topic: str) -> None:
    for address in [each for each in serving.cluster.addresses if topic_of_actor(each) == topic]:
        serving.cluster.allow(address)


def files_of(root: Path, part: str, least: int = 0) -> Sequence[Path]:
    """Those files of the first partition that are of a part; none if there are not so many yet."""
    files = sorted(file for file in (root / "1").glob("**/*") if file.is_file() and file.stat().st_size)
    found = [file for file in files if part_of(file.relative_to(root)) == part]
    return found if len(found) >= least else []
