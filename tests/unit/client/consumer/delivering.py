"""A consumer over fake links, and deliveries from dispatchers that the test plays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.client.consumer.consumer_core import ConsumerCore
from pulsar_ray.client.consumer.partition_consumer import PartitionConsumer
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.client.producer.batch_builder import BatchBuilder, BatchLimits
from pulsar_ray.client.received.block_decoder import SegmentFiles
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.row_ranges import RowRanges
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import ConsumerOpened, Credit, Deliver, OpenConsumer, Request, decode_request
from pulsar_ray.testing.manual_clock import ManualClock
from pulsar_ray.transport.cluster import AttachReply, PartitionRoute
from tests.unit.client.answered_link import AnsweredLink

TOPIC = "persistent://public/default/t"
UNSTORED_TOPIC = "non-persistent://public/default/t"
EPOCH = 5
LEDGER = 3


class DispatcherLink(AnsweredLink):
    """A link whose dispatcher opens every consumer and answers nothing else by itself."""

    absence = None
    is_closed = False

    def __init__(self) -> None:
        super().__init__()
        self.attached = AttachReply(1, 1, b"", EPOCH, None, None, ("", ""), "/a", 1, {})
        self.sent: list[Any] = []

    def request(
        self, build: Callable[[int], Request], _deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any:
        request = build(0)
        assert isinstance(request, OpenConsumer)
        opened = ConsumerOpened(0, request.name, EPOCH, resumed=False, generation=0)
        assert then is not None
        then(opened)
        return opened

    def send(self, buffers: Sequence[Any]) -> bool:
        self.sent.append(decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers))))
        return True

    def request_async(
        self, build: Any, reply: Any, *, waits: bool = False, behind: Sequence[Any] = ()
    ) -> None:
        super().request_async(build, reply, waits=waits, behind=behind)
        if behind:
            self.send(behind)

    @property
    def credits(self) -> list[int]:
        """Every credit that the dispatcher was told, in order."""
        return [request.credit for request in self.sent if isinstance(request, Credit)]

    def answer_all(self, error: PulsarException | None = None) -> list[Request]:
        """Answer what was asked by now; returns the requests."""
        asked, self.asked = self.asked, []
        for _, reply in asked:
            reply(None if error else "done", error)
        return [request for request, _ in asked]


def core_of(*topics: str, **options: Any) -> ConsumerCore:
    """The core of a consumer that has no partitions yet; of several topics if several are given."""
    topic: Any = list(topics) if len(topics) > 1 else (topics or (TOPIC,))[0]
    return ConsumerCore(
        ConsumerOptions(topic=topic, subscription_name="s", **options), "c", "s", SegmentFiles()
    )


def open_partition(core: ConsumerCore, topic: str = TOPIC) -> tuple[PartitionConsumer, DispatcherLink]:
    """One more partition of the consumer, open at its dispatcher."""
    link: Any = DispatcherLink()
    partition = PartitionConsumer(core, link, len(core.partitions.all) + 1, PartitionRoute(topic, -1, ""))
    core.partitions.add(partition)
    partition.open(0.0)
    return partition, link


def deliver(
    partition: PartitionConsumer,
    number: int,
    *values: bytes,
    generation: int = 0,
    epoch: int = EPOCH,
    entry_id: int | None = None,
    count: int = 0,
    rows: RowRanges = (),
) -> None:
    """Deliver one block with its bytes, as a dispatcher does to a consumer that cannot read the files.

    Or only these rows of it.
    """
    builder = BatchBuilder(
        BatchLimits(is_batching=len(values) > 1, max_messages=8192, max_bytes=1 << 20), ManualClock(1)
    )
    for value in values:
        builder.add(value, None)
    builder.seal()
    (sealed,) = builder.take_sealed()
    body = b"".join(
        bytes(buffer)
        for buffer in sealed.encode(
            incarnation=7, entry_seq=1, producer_name="p", codec=0, schema_version=None
        )
    )
    first = number - 1 if entry_id is None else entry_id
    rows = rows or ((0, len(values)),)
    grant: Any = (LEDGER, 0, 0, len(body), first, 1, rows, count, len(values))
    request = Deliver(partition.consumer_id, epoch, generation, [(number, grant)])
    partition.session.on_request(request, memoryview(body))
