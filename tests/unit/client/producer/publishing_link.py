"""A partition's link without sockets: the test is the partition, and loses its carriers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import NotConnected, PulsarException, SessionLost, WrongNode
from pulsar_ray.format.block import BlockHeader, parse_block_header
from pulsar_ray.lane.connection import Awaited
from pulsar_ray.lane.io_thread import LoopTimers
from pulsar_ray.session.packet import Buffer, decode_packet
from pulsar_ray.session.requests import ProducerOpened, Request
from pulsar_ray.transport.cluster import AttachReply
from pulsar_ray.transport.endpoint import Endpoint, Reply

ATTACHED = AttachReply(1, 1, b"", 5, None, None, ("", ""), "/a", 1, {})
Rows = list[tuple[int, int, int, int, int]]


class ManualTimers:
    """Keeps what is to be called later until the test calls it."""

    is_current = False

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def run(self) -> None:
        """Call what is due now."""
        due, self.due = self.due, []
        for callback in due:
            callback()


class PublishingLink:
    """Has the shape of an EndpointLink; `answer` is called for each request, at once if it is set."""

    def __init__(self) -> None:
        self.carrier: Any = None
        self.where = "a partition on a host"
        self.absence: WrongNode | None = None
        self.manual_timers = ManualTimers()
        self.timers: Any = self.manual_timers
        self.loop_timers: LoopTimers | None = None
        self.endpoints: dict[int, Endpoint] = {}
        self.written: list[tuple[object, BlockHeader]] = []
        """Each block that was written, with its carrier."""
        self.awaited: list[bool] = []
        """Whether who wrote it was about to wait for its receipt."""
        self.asked: list[tuple[Request, Reply]] = []
        self.answer: Callable[[Request], Any] | None = None
        self.before_send: Callable[[], None] = lambda: None
        self.begins_to_attach = 0
        self.is_parked = False

    @property
    def is_attached(self) -> bool:
        return self.carrier is not None

    def ensure_attached(self, _deadline: float) -> AttachReply:
        if self.carrier is None:
            raise NotConnected("no carrier")
        return ATTACHED

    def attaches(self, _deadline: float) -> bool:
        return self.carrier is not None

    def begin_attaching(self) -> None:
        self.begins_to_attach += 1

    @property
    def is_asleep(self) -> bool:
        return self.is_parked

    def wake(self) -> None:
        if self.is_parked:
            self.is_parked = False
            self.begin_attaching()

    def add_endpoint(self, endpoint_id: int, endpoint: Endpoint) -> None:
        self.endpoints[endpoint_id] = endpoint

    def remove_endpoint(self, endpoint_id: int) -> None:
        self.endpoints.pop(endpoint_id, None)

    def send(self, buffers: list[Any], only_on: Any = None, *, waits: bool = False) -> bool:
        self.before_send()
        if self.carrier is None or (only_on is not None and only_on is not self.carrier):
            return False
        packet = decode_packet(b"".join(buffers))
        self.written.append((self.carrier, parse_block_header(packet.body)))
        self.awaited.append(waits)
        return True

    def request_async(
        self,
        build: Callable[[int], Request],
        reply: Reply,
        *,
        waits: bool = False,
        behind: Sequence[Buffer] = (),
    ) -> None:
        request = build(len(self.asked) + 1)
        self.asked.append((request, reply))
        if self.carrier is None:
            reply(None, NotConnected("no carrier"))
        elif self.answer is not None:
            try:
                value = self.answer(request)
            except PulsarException as error:
                reply(None, error)
            else:
                reply(value, None)

    def ask(
        self, send: Callable[[Reply], None], _deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any:
        answers: list[tuple[Any, PulsarException | None]] = []
        while True:
            send(lambda value, error: answers.append((value, error)))
            value, error = answers.pop()
            if error is None:
                if then is not None:
                    then(value)
                return value
            if not isinstance(error, SessionLost):
                raise error

    def wait(self, event: Awaited, _deadline: float) -> bool:
        return event.is_set()

    # --- the partition's side ---------------------------------------------------------------------

    def attach(self, carrier: str, directory: str = ATTACHED.directory) -> None:
        """A carrier stands, to the partition of a directory; endpoints open again."""
        self.carrier = carrier
        for endpoint in list(self.endpoints.values()):
            endpoint.reopen(dataclasses.replace(ATTACHED, directory=directory))

    def lose(self) -> None:
        """The carrier is lost, and with it each answer that has not come."""
        self.carrier = None
        for endpoint in list(self.endpoints.values()):
            endpoint.on_detached()
        for _, reply in self.asked:
            reply(None, SessionLost("cut"))
        self.asked.clear()

    def seqs(self, carrier: object) -> list[int]:
        """The entry_seq of each block written to this carrier, in order."""
        return [header.entry_seq for on, header in self.written if on == carrier]


def opened(name: str = "p", **limits: int) -> ProducerOpened:
    """A partition's answer to a request to open."""
    return ProducerOpened(1, name, -1, -1, limits.get("max_message_size", 5 * 1024 * 1024), 1)


def receipts(*entry_seqs: int, producer_id: int = 7) -> Rows:
    """Receipts of blocks of one entry each, stored in ledger 3 at ten times their number."""
    return [(producer_id, seq, 1, 3, 10 * seq) for seq in entry_seqs]
