"""What the application is given is timed from the next tick on, whenever it is given it."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pytest

from pulsar_ray.client.acks.ack_timeouts import AckTimeouts
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.session.requests import NegativeAcknowledge
from tests.unit.client.consumer.delivering import LEDGER, DispatcherLink, core_of, deliver, open_partition

TIMEOUT_MS = 10_000


class Seconds:
    """Lets time pass at once, and with it what is due on a link."""

    def __init__(self, link: DispatcherLink, monkeypatch: pytest.MonkeyPatch) -> None:
        self._link = link
        self._now_ns = time.monotonic_ns()
        monkeypatch.setattr(time, "monotonic_ns", lambda: self._now_ns)

    def pass_one(self) -> None:
        self._now_ns += 1_000_000_000
        delayed, self._link.delayed = self._link.delayed, []
        for callback in delayed:
            callback()

    def pass_until_failed(self) -> list[tuple[int, int]]:
        """The entries that fail next; [] if none does in a minute."""
        for _ in range(60):
            self.pass_one()
            for request in self._link.answer_all():
                if isinstance(request, NegativeAcknowledge):
                    return [item[:2] for item in request.items]
        return []


def test_messages_that_are_handed_out_while_the_last_timeout_is_over_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = core_of(consumer_type=ConsumerType.Shared, unacked_messages_timeout_ms=TIMEOUT_MS)
    partition, link = open_partition(core)
    seconds = Seconds(link, monkeypatch)
    deliver(partition, 1, b"a")
    deliver(partition, 2, b"b", b"c")
    core.receive(0.0)
    delays_ms = AckTimeouts.delays_ms

    def delays_with_a_receive(self: AckTimeouts, failures: Iterable[int]) -> dict[int, int]:
        # Called while the timer does not hold the lock: another thread receives.
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is not None and 1_000_000 * deadline_ms <= time.monotonic_ns():
            assert [core.receive(0.0).data() for _ in range(2)] == [b"b", b"c"]
        return delays_ms(self, failures)

    monkeypatch.setattr(AckTimeouts, "delays_ms", delays_with_a_receive)
    assert seconds.pass_until_failed() == [(LEDGER, 0)]
    monkeypatch.setattr(AckTimeouts, "delays_ms", delays_ms)
    assert seconds.pass_until_failed() == [(LEDGER, 1)]
