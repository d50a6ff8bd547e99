"""A link without a carrier: the test answers its requests and runs its timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pulsar_ray.errors import PulsarException
from pulsar_ray.session.requests import Request

Reply = Callable[[Any, PulsarException | None], None]


class AnsweredLink:
    """What producers and consumers use of an ActorLink; it is its own timers."""

    def __init__(self, carrier: str | None = "first") -> None:
        self.carrier: Any = carrier
        self.attached: Any = None
        self.timers = self
        self.where = "an actor on a host"
        self.endpoints: dict[int, Any] = {}
        self.is_parked = False
        self.has_told_end = False
        self.is_over = False
        self.is_woken = False
        self.asked: list[tuple[Request, Reply]] = []
        self.delayed: list[Callable[[], None]] = []
        self.awaited: list[Any] = []
        self.left: list[tuple[int, bool]] = []
        self.answer: Callable[[Request], Any] | None = None
        """What `request` returns or raises, and each later request is answered with at once, if anything."""

    def ensure_started(self, deadline: float) -> float:
        """It is attached."""
        return deadline

    @property
    def is_asleep(self) -> bool:
        return self.is_parked

    def wake(self) -> None:
        self.is_woken = self.is_woken or self.is_parked

    def report_left(self, incarnation: int, calls_election: bool, _timeout_s: float) -> None:
        self.left.append((incarnation, calls_election))

    def add_endpoint(self, endpoint_id: int, endpoint: Any) -> None:
        self.endpoints[endpoint_id] = endpoint

    def remove_endpoint(self, endpoint_id: int) -> None:
        self.endpoints.pop(endpoint_id, None)

    def ask(
        self, send: Callable[[Reply], None], deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any:
        send(lambda *_: None)
        request, _ = self.asked.pop()
        return self.request(lambda _: request, deadline, then)

    def request_async(
        self,
        build: Callable[[int], Request],
        reply: Reply,
        *,
        waits: bool = False,
        behind: Sequence[Any] = (),
    ) -> None:
        request = build(len(self.asked) + 1)
        self.asked.append((request, reply))
        if self.answer is not None:
            reply(self.answer(request), None)

    def request(
        self, build: Callable[[int], Request], _deadline: float, then: Callable[[Any], None] | None = None
    ) -> Any:
        assert self.answer is not None
        answer = self.answer(build(0))
        if then is not None:
            then(answer)
        return answer

    def attaches(self, _deadline: float) -> bool:
        return self.carrier is not None

    def wait(self, event: Any, _deadline: float) -> bool:
        self.awaited.append(event)
        return bool(event.is_set())

    def call_later(self, _delay_s: float, callback: Callable[[], None]) -> None:
        self.delayed.append(callback)
