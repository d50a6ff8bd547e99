"""The highest stored sequence id, as a producer knows it."""

from __future__ import annotations

import pytest

from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.queue.stored_sequence import StoredSequence


def begun(stored_id: int, initial_sequence_id: int | None = None) -> StoredSequence:
    stored = StoredSequence(ProducerOptions(topic="t", initial_sequence_id=initial_sequence_id))
    stored.begin("maker", stored_id)
    return stored


def test_it_goes_on_behind_what_earlier_producers_of_the_name_stored() -> None:
    stored = begun(41)
    assert stored.last_id == 41
    stored.note(50)
    stored.note(45)  # a receipt may come late
    assert stored.last_id == 50


def test_it_begins_where_the_user_said() -> None:
    assert begun(-1, initial_sequence_id=99).last_id == 99


def test_a_beginning_below_what_is_stored_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert begun(41, initial_sequence_id=9).last_id == 41
    [warning] = caplog.messages
    assert "'maker'" in warning
    assert "id 10," in warning
    assert "up to 41" in warning
