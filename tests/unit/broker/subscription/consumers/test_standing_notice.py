"""A consumer is told why nothing comes: of damage at once, of an absence later, not at each attempt."""

from __future__ import annotations

from typing import Any

from pulsar_ray.broker.subscription.consumers.standing_notice import AGAIN_S, AWAY_S, StandingNotice
from pulsar_ray.errors import CorruptData, JournalDamaged, RemoteStoreUnavailable
from pulsar_ray.session.packet import decode_packet
from pulsar_ray.session.requests import NotRead, decode_request

AWAY, GONE = RemoteStoreUnavailable("the bucket is away"), JournalDamaged("1-0 is gone")


class Told:
    """Plays the session, and notes what is sent."""

    def __init__(self) -> None:
        self.requests: list[NotRead] = []
        session: Any = self
        self.notice = StandingNotice(session, 3, 7)

    def send(self, buffers: Any) -> None:
        request = decode_request(decode_packet(b"".join(bytes(buffer) for buffer in buffers)))
        assert isinstance(request, NotRead)
        self.requests.append(request)

    @property
    def errors(self) -> list[str]:
        return [request.error for request in self.requests]


def test_damage_is_told_at_once_and_again_after_a_while() -> None:
    told = Told()
    for now_s in (5.0, 6.0, 5.0 + AGAIN_S):
        told.notice.failed(GONE, 2, now_s)
    assert told.requests == [NotRead(3, 7, 2, "JournalDamaged", "1-0 is gone", {})] * 2


def test_an_object_store_that_is_away_is_waited_for_first() -> None:
    told = Told()
    told.notice.failed(AWAY, 0, 5.0)
    told.notice.failed(AWAY, 0, 4.9 + AWAY_S)
    told.notice.went_on(0)
    told.notice.failed(AWAY, 0, 20.0)
    assert told.errors == []
    told.notice.failed(AWAY, 0, 20.0 + AWAY_S)
    told.notice.failed(AWAY, 0, 21.0 + AWAY_S)
    assert told.errors == ["RemoteStoreUnavailable"]


def test_another_object_is_told_at_once_and_so_is_the_same_behind_a_seek() -> None:
    told = Told()
    told.notice.failed(GONE, 0, 1.0)
    told.notice.failed(JournalDamaged("2-0 is gone"), 0, 2.0)
    told.notice.sought()
    told.notice.failed(JournalDamaged("2-0 is gone"), 1, 3.0)
    assert told.errors == ["JournalDamaged"] * 3


def test_what_was_told_is_taken_back_once() -> None:
    told = Told()
    told.notice.went_on(0)
    told.notice.failed(GONE, 0, 1.0)
    told.notice.went_on(0)
    told.notice.went_on(0)
    assert told.errors == ["JournalDamaged", ""]


def test_what_the_disk_has_refused_is_not_told() -> None:
    told = Told()
    told.notice.failed(OSError("no"), 0, 100.0)
    told.notice.failed(None, 0, 200.0)
    assert told.errors == []


def test_an_error_in_place_of_bytes_keeps_its_fields() -> None:
    told = Told()
    told.notice.has_no_bytes(CorruptData("1-0.seg", 17, "cut off"), 4, 9)
    [request] = told.requests
    assert (request.generation, request.number) == (4, 9)
    assert (request.error, request.details) == ("CorruptData", {"path": "1-0.seg", "offset": 17})
