"""An error that a closed handle raises again and again does not gather the frames of all who met it."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from pulsar_ray import Client
from pulsar_ray.errors import AlreadyClosed


def _traceback_length(use: Callable[[], object]) -> int:
    with pytest.raises(AlreadyClosed) as raised:
        use()
    return len(traceback.extract_tb(raised.value.__traceback__))


def test_tracebacks_do_not_grow_with_each_try(client: Client) -> None:
    producer = client.create_producer("t")
    consumer = client.subscribe("t", "s")
    client.shutdown()
    for use in (lambda: producer.send(b"x"), consumer.receive, consumer.batch_receive):
        lengths = {_traceback_length(use) for _ in range(100)}
        assert len(lengths) == 1, lengths
