"""A producer or consumer in a process of its own, which journals what it was told, until its stdin ends.

`python -m tests.faults.client_process '<json of ClientSpec>'`; it can be killed and frozen at any moment.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar_ray
from pulsar_ray import ConsumerType, InitialPosition, Message, MessageId, Result
from pulsar_ray.client.received import block_decoder
from pulsar_ray.errors import ConsumerBusy, Timeout
from tests.faults.cuts import CarrierCuts
from tests.faults.journal import Journal, id_of

OPERATION_TIMEOUT_S = 120
LARGE_BYTES = 200_000
LARGE_SHARE = 0.02
MANY = 20
NACKED_SHARE = 0.03
RECEIVE_MS = 300
BUSY_PAUSE_S = 0.2


@dataclass(frozen=True)
class ClientSpec:
    """`role` is sync, async or many for producers, receipts, grouped, cumulative or holding for consumers."""

    address: str
    role: str
    topic: str
    tag: str
    journal: str
    transport: str
    seed: int
    pause_s: float = 0.05
    subscription: str = ""
    mean_cut_pause_s: float = 0.0
    queue_size: int = 50
    nacks: bool = False
    reads_files: bool = True


class Process:
    """What both roles have: a client, a journal, and the end of stdin."""

    def __init__(self, spec: ClientSpec) -> None:
        self.spec = spec
        self.rng = random.Random(spec.seed)
        self.journal = Journal(Path(spec.journal))
        self.stopped = threading.Event()
        # What it talks to is killed and frozen again and again; all that is asked is that a call ends well.
        self.client = pulsar_ray.Client(
            spec.address, transport=spec.transport, operation_timeout_seconds=OPERATION_TIMEOUT_S
        )
        threading.Thread(target=self._watch_stdin, daemon=True).start()

    def _watch_stdin(self) -> None:
        sys.stdin.read()
        self.stopped.set()

    def run(self) -> None:
        if self.spec.role in ("sync", "async", "many"):
            self._produce()
        else:
            self._consume()
        self.client.close()
        self.journal.write("closed")

    # --- producing ---------------------------------------------------------------------------------------

    def _produce(self) -> None:
        batching = self.spec.role == "async"
        producer = self.client.create_producer(
            self.spec.topic,
            producer_name=self.spec.tag,
            batching_enabled=batching,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
            max_pending_messages=200,
            send_timeout_millis=60_000,
        )
        self.journal.write("started")
        send = {"sync": self._send, "async": self._send_async, "many": self._send_many}[self.spec.role]
        number = 0
        while not self.stopped.wait(self.rng.random() * 2 * self.spec.pause_s):
            try:
                number = send(producer, number)
            except Timeout:
                # Whether it was stored is unknown: it may be in the log once, in its place, or not at all.
                self.journal.write("timeout", number)
                number += MANY
        producer.flush()
        producer.close()

    def _payload(self, number: int) -> bytes:
        size = LARGE_BYTES if self.rng.random() < LARGE_SHARE else 20
        return f"{self.spec.tag} {number} ".encode() + b"x" * self.rng.randrange(size)

    def _send(self, producer: pulsar_ray.Producer, number: int) -> int:
        message_id = producer.send(self._payload(number))
        self.journal.write("confirmed", number, id_of(message_id))
        return number + 1

    def _send_async(self, producer: pulsar_ray.Producer, number: int) -> int:
        for each in range(number, number + 3):
            producer.send_async(self._payload(each), self._confirm(each))
        return number + 3

    def _confirm(self, number: int) -> Callable[[Any, MessageId], None]:
        def callback(result: Any, message_id: MessageId) -> None:
            if result == Result.Ok:
                self.journal.write("confirmed", number, id_of(message_id))
            else:
                self.journal.write("refused", number, str(result))

        return callback

    def _send_many(self, producer: pulsar_ray.Producer, number: int) -> int:
        numbers = range(number, number + MANY)
        producer.send_many([self._payload(each) for each in numbers])
        for each in numbers:
            self.journal.write("confirmed", each, None)
        return number + MANY

    # --- consuming ---------------------------------------------------------------------------------------

    def _consume(self) -> None:
        consumer = self._subscribe()
        self.journal.write("started")
        while not self.stopped.is_set():
            try:
                message = consumer.receive(RECEIVE_MS)
            except Timeout:
                continue
            place = id_of(message.message_id())
            head = message.data()[:60].decode().rsplit(" ", 1)[0]
            self.journal.write("received", place, head, message.redelivery_count())
            self._acknowledge(consumer, message)
        consumer.close()

    def _acknowledge(self, consumer: pulsar_ray.Consumer, message: Message) -> None:
        role = self.spec.role
        place = id_of(message.message_id())
        if self.spec.nacks and self.rng.random() < NACKED_SHARE:
            consumer.negative_acknowledge(message)
        elif role == "grouped":
            consumer.acknowledge(message)
        elif role == "receipts":
            consumer.acknowledge(message)
            self.journal.write("acknowledged", place, message.message_id().batch_size())
        elif role == "cumulative" and self.rng.random() < 0.1:
            consumer.acknowledge_cumulative(message)
            self.journal.write("acknowledged up to", place, message.message_id().batch_size())

    def _subscribe(self) -> pulsar_ray.Consumer:
        exclusive = self.spec.role == "cumulative"
        while True:
            try:
                return self.client.subscribe(
                    self.spec.topic,
                    self.spec.subscription,
                    consumer_type=ConsumerType.Exclusive if exclusive else ConsumerType.Shared,
                    consumer_name=self.spec.tag,
                    initial_position=InitialPosition.Earliest,
                    receiver_queue_size=self.spec.queue_size,
                    ack_receipt_enabled=self.spec.role != "grouped",
                    negative_ack_redelivery_delay_ms=500,
                )
            except ConsumerBusy:
                # A killed predecessor on the Ray carrier is missed only when its lease is over.
                self.stopped.wait(BUSY_PAUSE_S)


def _cannot_read(reach: tuple[str, str]) -> bool:
    """As if the segments were on another node."""
    return not reach


def main() -> None:
    spec = ClientSpec(**json.loads(sys.argv[1]))
    if not spec.reads_files:
        block_decoder.can_read = _cannot_read
    if spec.mean_cut_pause_s:
        CarrierCuts(spec.seed, spec.mean_cut_pause_s)
    Process(spec).run()


if __name__ == "__main__":
    main()
