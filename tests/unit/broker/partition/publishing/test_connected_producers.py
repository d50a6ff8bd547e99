"""Names and incarnations of a partition's producers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.broker.partition.publishing.connected_producers import ConnectedProducers
from pulsar_ray.broker.partition.publishing.producer_endpoint import WaitingBlocks
from pulsar_ray.config import Settings
from pulsar_ray.errors import IncarnationForgotten, ProducerBusy
from pulsar_ray.managed_ledger.log.memory_log import MemoryLog
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import (
    NO_BLOCK,
    NO_SCHEMA,
    OpenProducer,
    ProducerOpened,
    PublishFailed,
    decode_request,
)
from pulsar_ray.session.session_table import Session
from pulsar_ray.testing.manual_clock import ManualClock


class Producers:
    """A partition with two sessions."""

    def __init__(self) -> None:
        policies = self.policies = PartitionPolicies(Settings(max_message_size=1000))
        self.clock = ManualClock()
        self.log = MemoryLog(9, lambda _: None)
        self.connected = ConnectedProducers(self.log, WaitingBlocks(), policies, self.clock, "made-up")
        self.sessions = [Session(number, f"client {number}", 0) for number in range(2)]

    def open(
        self,
        incarnation: int,
        name: str | None = "p",
        *,
        session: int = 0,
        replaces: int = 0,
        first: int = 0,
        was_open: bool = False,
    ) -> ProducerOpened:
        request = OpenProducer(
            1, incarnation, name, incarnation, replaces, first, 0, name is not None, None, was_open
        )
        return self.connected.open(self.sessions[session], request)


def test_the_answer_has_the_policies_of_the_topic_and_no_schema() -> None:
    opened = Producers().open(7)
    settings = Settings()
    assert (opened.name, opened.epoch, opened.max_message_size) == ("p", 9, 1000)
    assert (opened.max_block_rows, opened.max_block_bytes) == (
        settings.max_block_rows,
        settings.max_block_bytes,
    )
    assert opened.schema_version == NO_SCHEMA


def test_names_are_made_up_for_producers_without_one() -> None:
    producers = Producers()
    assert [producers.open(n, None).name for n in (7, 8)] == ["made-up-9-1", "made-up-9-2"]


def test_a_producer_that_asks_again_for_a_lost_answer_is_given_the_same_name() -> None:
    producers = Producers()
    given = producers.open(1, name=None).name
    assert producers.open(1, name=None).name == given
    assert list(producers.connected.by_name) == [given]


def test_a_name_belongs_to_one_producer_until_it_closes() -> None:
    producers = Producers()
    producers.open(7)
    with pytest.raises(ProducerBusy, match="'p' is already connected"):
        producers.open(8, session=1)
    assert producers.connected.holder_beside(producers.sessions[1], "p") is producers.sessions[0]
    assert producers.connected.holder_beside(producers.sessions[0], "p") is None
    producers.connected.close(producers.connected.by_name["p"])
    assert not producers.sessions[0].endpoints
    assert producers.open(8, session=1).name == "p"


def test_the_same_incarnation_opens_again_where_its_blocks_go_on() -> None:
    producers = Producers()
    producers.open(7)
    before = producers.connected.by_name["p"]
    before.next_seq = 5
    producers.open(7, session=1, first=3)
    after = producers.connected.by_name["p"]
    assert (after.next_seq, after.session) == (5, producers.sessions[1])
    assert after.traffic is before.traffic, "it is the same producer"
    assert producers.connected.current(before) is after


def test_a_replaced_incarnation_gets_no_answers_any_more() -> None:
    producers = Producers()
    producers.open(7)
    before = producers.connected.by_name["p"]
    producers.open(8, session=1, replaces=7)
    assert producers.connected.current(before) is None
    producers.connected.close(before)
    assert producers.connected.by_name["p"].incarnation == 8, "a late close frees nobody else's name"


def test_a_limit_keeps_new_producers_out_and_nobody_else() -> None:
    producers = Producers()
    producers.open(7, "a")
    producers.policies.take(producers.policies.settings.replace(max_producers_per_topic=1))
    with pytest.raises(ProducerBusy, match="has 1 producers, and its policy max_producers allows 1"):
        producers.open(8, "b")
    producers.open(7, "a", session=1)
    producers.open(9, "a", replaces=7)
    producers.open(10, "c", was_open=True)
    producers.policies.take(producers.policies.settings.replace(max_producers_per_topic=3))
    producers.open(8, "b")


def test_open_producers_are_sent_a_size_that_has_changed() -> None:
    producers = Producers()
    sent: list[Any] = []
    producers.sessions[0].carry_by(cast("Any", SimpleNamespace(send=sent.append)))
    producers.open(7)
    producers.policies.take(producers.policies.settings.replace(max_message_size=500))
    producers.connected.limits_changed()
    (packet,) = sent
    news = decode_request(decode_packet(b"".join(packet)))
    assert isinstance(news, PublishFailed)
    assert (news.producer_id, news.entry_seq) == (7, NO_BLOCK)
    assert news.details == {"max_message_size": 500, "max_delivery_delay_ms": 0}


def test_a_connected_producer_may_go_on_with_its_message_however_long_it_takes() -> None:
    producers = Producers()
    producers.open(7)
    producers.connected.by_name["p"].next_seq = 3
    producers.clock.advance(10_000_000)
    assert producers.connected.take_leave({7: 2}, 0) == []


def test_a_producer_whose_later_block_was_admitted_has_moved_on() -> None:
    """Its chunk was refused, perhaps: what was stored of what came behind the last one is no chunk."""
    producers = Producers()
    producers.open(7)
    producers.connected.by_name["p"].next_seq = 4
    assert producers.connected.take_leave({7: 2}, 0) == [7]
    assert not producers.log.incarnations.is_retired(7)


def test_a_producer_that_was_away_for_long_is_not_let_in_again_with_its_message() -> None:
    producers = Producers()
    producers.open(7)
    producers.connected.close(producers.connected.by_name["p"])
    producers.clock.advance(999)
    assert producers.connected.take_leave({7: 0}, 1000) == []
    producers.clock.advance(1)
    assert producers.connected.take_leave({7: 0}, 1000) == [7]
    for first in (0, 1):
        with pytest.raises(IncarnationForgotten):
            producers.open(7, first=first)
    producers.open(8, replaces=7)
    assert producers.connected.take_leave({7: 0, 99: 0}, 10**9) == [7, 99], "nobody remembers the second"
