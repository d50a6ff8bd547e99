"""What a consumer is answered by its dispatcher; the partition and the subscription are played here."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pulsar_ray.broker.subscription.consumers.consumer_calls import ConsumerCalls
from pulsar_ray.broker.subscription.consumers.delivery_progress import StoredProgress
from pulsar_ray.errors import BrokerMetadataError
from pulsar_ray.model.message_id import Position

FIRST, LAST = Position(1, 0), Position(1, 9)


class Subscription:
    """Plays partition, subscription, its core and its consumer."""

    def __init__(self) -> None:
        self.core = self.consumers = self.turn = self
        self.compacted = None
        self.stored = {"position": list(LAST), "first": list(FIRST)}
        self.more: list[bool | None] = [False]
        """What the core knows, one look after the other."""
        self.under_way_behind = 0
        self.incarnation, self.numbering, self.has_unsent = 7, 3, False
        self.has_others = False
        self.sought: list[Any] = []
        self.unsubscribed: list[str] = []
        played: Any = self
        self.name = self.subscription = "s"
        progress = StoredProgress(played, {"s": played})
        self.calls = ConsumerCalls(progress, "t", seek=self._seek, unsubscribe=self._unsubscribe)

    async def call(self, method: str) -> Any:
        assert method == "last_message"
        return self.stored

    def compacted_log(self) -> Any:
        """Play a log that was not compacted."""
        return self

    async def _seek(self, name: str, target: Any, inclusive: bool) -> int:
        assert name == self.name
        self.sought.append((target, inclusive))
        return len(self.sought)

    async def _unsubscribe(self, host: Any, endpoint: Any) -> None:
        assert host is endpoint is self
        self.unsubscribed.append("once")

    async def wait_run(self, _timeout_s: float) -> None:
        """A turn is over."""

    async def wait_for_known(self) -> None:
        """Those that slept are back."""

    def check_sole(self, endpoint: Any, where: str) -> None:
        assert endpoint is self
        assert where == "the subscription 's' of t"
        if self.has_others:
            raise BrokerMetadataError("others are connected")

    def has_more(self, last: Position) -> bool | None:
        assert last == LAST
        return self.more.pop(0)

    def is_under_way(self, consumer_id: int, received: int) -> bool:
        assert consumer_id == self.incarnation
        return received < self.under_way_behind

    def ask(self, method: str, **arguments: Any) -> Any:
        """The answer to a call of its consumer."""
        played: Any = self
        return asyncio.run(self.calls.call(method, played, played, arguments))

    def asks_for_more(self, received: int, numbering: int = 3) -> Any:
        return self.ask("has_more", numbering=numbering, received=received)


def test_a_seek_is_done_once_and_answered_each_time() -> None:
    subscription = Subscription()

    async def seek_thrice() -> list[Any]:
        played: Any = subscription
        seek = {"target": "earliest", "inclusive": True}
        return [
            await subscription.calls.call("seek", played, played, {"seek_id": number, **seek})
            for number in (5, 5, 6)
        ]

    assert asyncio.run(seek_thrice()) == [1, 1, 2]
    assert subscription.sought == [("earliest", True)] * 2


def test_only_the_last_consumer_unsubscribes() -> None:
    subscription = Subscription()
    subscription.has_others = True
    for method in ("check_unsubscribe", "unsubscribe"):
        with pytest.raises(BrokerMetadataError):
            subscription.ask(method)
    subscription.has_others = False
    subscription.ask("check_unsubscribe")
    assert not subscription.unsubscribed
    subscription.ask("unsubscribe")
    assert subscription.unsubscribed == ["once"]


def test_there_is_more_if_anything_waits() -> None:
    subscription = Subscription()
    assert subscription.asks_for_more(0) is False
    subscription.more = [True]
    assert subscription.asks_for_more(0) is True


def test_what_is_on_its_way_is_more_until_it_was_received_in_this_numbering() -> None:
    subscription = Subscription()
    subscription.under_way_behind = 4
    for received, numbering, expected in ((3, 3, True), (4, 3, False), (4, 2, True)):
        subscription.more = [False]
        assert subscription.asks_for_more(received, numbering) is expected


def test_what_was_received_and_is_sent_again_is_no_more() -> None:
    subscription = Subscription()
    subscription.has_unsent = True
    subscription.under_way_behind = 4
    assert subscription.asks_for_more(4) is False


def test_what_is_not_known_yet_is_waited_for() -> None:
    subscription = Subscription()
    subscription.more = [None, None, False]
    assert subscription.asks_for_more(0) is False
    assert not subscription.more


def test_what_does_not_become_known_may_be_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pulsar_ray.broker.subscription.consumers.delivery_progress.UNKNOWN_DEADLINE_S", 0.0)
    subscription = Subscription()
    subscription.more = [None]
    assert subscription.asks_for_more(0) is True


def test_nothing_comes_of_what_is_trimmed() -> None:
    subscription = Subscription()
    subscription.stored = {"position": list(LAST), "first": [2, 0]}
    subscription.more = [True]
    subscription.under_way_behind = 1
    assert subscription.asks_for_more(0) is False


def test_the_last_message_is_the_partitions() -> None:
    subscription = Subscription()
    assert subscription.ask("last_message") == subscription.stored
