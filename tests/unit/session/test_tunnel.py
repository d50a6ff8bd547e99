from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pulsar_ray.errors import ProtocolError
from pulsar_ray.session.packet import Buffer
from pulsar_ray.session.tunnel import MAX_EARLY_BYTES, Exchange, TunnelEnd


class Channel:
    """Calls under way between two ends, which arrive, vanish, repeat and overtake each other."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.caller = TunnelEnd()
        self.answerer = TunnelEnd()
        self.at_caller: list[Buffer] = []
        self.at_answerer: list[Buffer] = []
        self.calls: list[Exchange] = []
        self.answers: list[Exchange] = []
        self.open_calls = 0

    def call(self) -> None:
        self.calls.append(self.caller.begin_call(self.random.choice([0, 10, 1000])))
        self.open_calls += 1

    def deliver_call(self) -> None:
        if not self.calls:
            return
        call = self._take(self.calls)
        self.at_answerer += self.answerer.answer(*call)
        self.answers.append(self.answerer.outgoing(self.random.choice([0, 10, 1000])))

    def deliver_answer(self) -> None:
        if self.answers and self.open_calls:
            self.at_caller += self.caller.end_call(*self._take(self.answers))
            self.open_calls -= 1

    def fail_call(self) -> None:
        if self.open_calls:
            self.caller.failed()
            self.open_calls -= 1

    def lose(self) -> None:
        for queue in (self.calls, self.answers):
            if queue and self.random.random() < 0.5:
                queue.pop(self.random.randrange(len(queue)))

    def finish(self) -> None:
        """Late calls still arrive, though nobody waits for them; then one clean exchange after the other."""
        while self.calls:
            self.deliver_call()
        while self.open_calls:
            self.fail_call()
        for _ in range(1000):
            last_received, packets = self.caller.begin_call(10_000)
            self.at_answerer += self.answerer.answer(last_received, packets)
            self.at_caller += self.caller.end_call(*self.answerer.outgoing(10_000))
            if not self.caller.unconfirmed_bytes and not self.answerer.unconfirmed_bytes:
                return
        raise AssertionError("the tunnel makes no progress")

    def _take(self, queue: list[Exchange]) -> Exchange:
        index = self.random.randrange(len(queue))
        # A repeated call or answer arrives again later.
        return queue[index] if self.random.random() < 0.2 else queue.pop(index)


@pytest.mark.parametrize("seed", range(60))
def test_everything_arrives_once_in_order_over_any_channel(seed: int) -> None:
    channel = Channel(seed)
    sent_up: list[Buffer] = []
    sent_down: list[Buffer] = []

    def send(end: TunnelEnd, sent: list[Buffer]) -> None:
        packet = f"{len(sent)}".encode() * channel.random.randrange(1, 8)
        sent.append(packet)
        end.send(packet)

    steps: list[Callable[[], None]] = [
        lambda: send(channel.caller, sent_up),
        lambda: send(channel.answerer, sent_down),
        channel.call,
        channel.deliver_call,
        channel.deliver_call,
        channel.deliver_answer,
        channel.deliver_answer,
        channel.fail_call,
        channel.lose,
    ]
    for _ in range(400):
        channel.random.choice(steps)()
        assert channel.at_answerer == sent_up[: len(channel.at_answerer)]
        assert channel.at_caller == sent_down[: len(channel.at_caller)]
    channel.finish()
    assert channel.at_answerer == sent_up
    assert channel.at_caller == sent_down


def test_packets_under_way_are_not_sent_twice() -> None:
    end = TunnelEnd()
    for number in range(3):
        end.send(b"%d" % number)
    assert end.begin_call(2) == (0, [(1, b"0"), (2, b"1")])
    assert end.begin_call(100) == (0, [(3, b"2")])
    assert end.begin_call(100) == (0, [])
    end.failed()
    assert end.begin_call(100) == (0, [(1, b"0"), (2, b"1"), (3, b"2")])


def test_a_packet_above_the_bound_still_goes() -> None:
    end = TunnelEnd()
    end.send(bytes(100))
    end.send(b"next")
    assert end.outgoing(10) == (0, [(1, bytes(100))])


def test_confirmed_packets_are_forgotten() -> None:
    end = TunnelEnd()
    end.send(b"12345")
    end.send(b"678")
    end.begin_call(100)
    assert end.unconfirmed_bytes == 8
    assert end.end_call(1, [(1, b"answer")]) == [b"answer"]
    assert end.unconfirmed_bytes == 3
    assert end.last_received == 1
    assert end.outgoing(100) == (1, [(2, b"678")])


def test_early_packets_are_bounded() -> None:
    end = TunnelEnd()
    large = bytes(MAX_EARLY_BYTES // 2)
    assert end.incoming(0, [(number, large) for number in range(2, 6)]) == []
    assert end.incoming(0, [(1, b"first")]) == [b"first", large, large]
    assert end.incoming(0, [(4, large)]) == [large]


@pytest.mark.parametrize(("last_received", "number"), [(1, 1), (0, 0), (0, -3)])
def test_numbers_that_cannot_be_are_refused(last_received: int, number: int) -> None:
    with pytest.raises(ProtocolError):
        TunnelEnd().incoming(last_received, [(number, b"")])
