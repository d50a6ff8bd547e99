"""A process that opens a scene on a real cluster, or looks at what has become of it.

`python -m tests.torture.real.scene_process open|close SCENE ADDRESS HISTORY`
"""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.errors import PulsarException
from tests.faults.history.operations import Received, operation_of
from tests.faults.journal import Journal, read_on
from tests.torture.clients import Notes
from tests.torture.clock import JumpingClock
from tests.torture.compacting import judge_table, table_of
from tests.torture.real.client_process import OPERATION_S
from tests.torture.round import CATCH_UP_S
from tests.torture.scene_record import SceneRecord
from tests.torture.scenes import scene_of

OPEN, CLOSE = "open", "close"
CAUGHT_UP, MISSING = "caught up", "missing: "
LOOK_S = 0.5


class Deliveries:
    """What all consumers of a scene have been given, read on from their journals."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._read: dict[Path, int] = {}

    def look(self) -> None:
        """Take in what was written since."""
        for path in self._notes.directory.glob("*.journal"):
            records, self._read[path] = read_on(path, self._read.get(path, 0))
            for record in records:
                operation = operation_of(record)
                if isinstance(operation, Received) and operation.topic == self._notes.topic:
                    self._notes.receive(operation.subscription, operation.producer, operation.number)


def open_scene(record: SceneRecord, client: Client, address: str) -> None:
    """Make the topic, with its policies and subscriptions."""
    scene = record.scene
    with Admin(address) as admin:
        if scene.partitions:
            admin.topics.create_partitioned_topic(scene.topic, scene.partitions)
        else:
            admin.topics.create_topic(scene.topic)
        record.declare(client, admin)


def close_scene(record: SceneRecord, client: Client, address: str) -> None:
    """Note the log, wait until consumers have it, and once they left what the subscriptions still give."""
    record.read_log(client)
    deliveries = Deliveries(record.notes)
    end = time.monotonic() + CATCH_UP_S
    while True:
        deliveries.look()
        missing = {name: len(numbers) for name, numbers in record.missing().items()}
        letters = record.missing_letters(client)
        if not missing and not letters:
            print(CAUGHT_UP, flush=True)
            break
        if time.monotonic() > end:
            print(f"{MISSING}{missing}, {letters} dead letters", flush=True)
            break
        time.sleep(LOOK_S)
    sys.stdin.readline()
    if record.scene.is_administered:
        with Admin(address) as admin:
            record.note_values(admin)
    if record.scene.is_compacted:
        judge_table(client, lambda: Admin(address), table_of(record.scene.topic))
    record.note_letters(client)
    record.note_what_remains(client)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.ERROR)
    what, name, address, directory = sys.argv[1:]
    history = Path(directory)
    scene = scene_of(name)
    notes = Notes(history, scene.topic, JumpingClock())
    record = SceneRecord(scene, notes, Journal(history / f"{what}-{name}.journal"))
    client = Client(address, operation_timeout_seconds=OPERATION_S)
    if what == OPEN:
        open_scene(record, client, address)
    else:
        close_scene(record, client, address)
    with suppress(PulsarException):
        client.close()


if __name__ == "__main__":
    main()
