"""An embedded broker that is gone for good: every handle says so at once, and closing waits for nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_ray import Client, MessageId, Result
from pulsar_ray.client.producer.partition_producer import PartitionProducer
from pulsar_ray.errors import BrokerGone, PulsarException
from pulsar_ray.testing.waiting import wait_until
from tests.conformance.broker import Broker
from tests.conformance.event_loop import on_a_loop

TIMEOUT_S = 30.0


def _in_thread(use: Callable[[], Any]) -> Callable[[], BaseException]:
    """Use it until that raises; what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            while True:
                use()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            raised.append(error)

    threading.Thread(target=run, daemon=True).start()

    def error() -> BaseException:
        wait_until(lambda: raised, TIMEOUT_S, "an error of the thread that was inside")
        return raised[0]

    return error


def test_threads_inside_are_told_and_everything_closes(broker: Broker, client: Client) -> None:
    producer = client.create_producer("t", send_timeout_millis=600_000)
    consumer = client.subscribe("t", "s")
    reader = client.create_reader("t", MessageId.latest)
    admin = broker.admin()
    errors = [
        _in_thread(lambda: producer.send(b"x")),
        _in_thread(consumer.receive),
        _in_thread(reader.read_next),
    ]
    wait_until(lambda: producer.last_sequence_id() > 0, TIMEOUT_S, "the threads' first messages")
    broker.cluster.go()
    for error in errors:
        assert isinstance(error(), BrokerGone)
    for use in (
        lambda: producer.send(b"y"),
        lambda: consumer.receive(600_000),
        lambda: client.create_producer("other"),
        reader.has_message_available,
    ):
        with pytest.raises(BrokerGone):
            use()
    producer.close()
    consumer.close()
    client.close()
    admin.close()


def test_what_waits_for_a_receipt_gets_the_error_as_its_result(broker: Broker, client: Client) -> None:
    producer = client.create_producer("t", send_timeout_millis=600_000)
    results: list[Result] = []
    broker.cluster.kill(producer.topic(), keep_down=True)
    producer.send_async(b"x", lambda result, _: results.append(result))
    broker.cluster.go()
    wait_until(lambda: results, TIMEOUT_S, "the callback")
    assert results == [Result.ConnectError]


def test_an_acknowledgment_that_waits_for_its_receipt_is_told(broker: Broker, client: Client) -> None:
    consumer = client.subscribe("t", "s", ack_receipt_enabled=True)
    client.create_producer("t").send(b"1")
    message = consumer.receive(30_000)
    broker.cluster.go()
    with pytest.raises(BrokerGone):
        consumer.acknowledge(message)


@on_a_loop
async def test_tasks_are_told(broker: Broker) -> None:
    client = broker.asyncio_client()
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s")
    received = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await asyncio.to_thread(broker.cluster.go)
    with pytest.raises(BrokerGone):
        await received
    with pytest.raises(BrokerGone):
        await producer.send(b"x")
    await client.close()


def test_a_send_that_waits_is_told_however_slowly_the_telling_goes(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = client.create_producer("t")
    producer.send(b"x")
    told_slowly = PartitionProducer.on_refused
    has_given_up = threading.Event()

    def on_refused(partition: PartitionProducer, error: PulsarException) -> None:
        has_given_up.wait(1)
        told_slowly(partition, error)

    monkeypatch.setattr(PartitionProducer, "on_refused", on_refused)
    monkeypatch.setattr(PartitionProducer, "give_up", lambda _: has_given_up.set())
    broker.cluster.partition(producer.topic()).freeze()
    error = _in_thread(lambda: producer.send(b"y"))
    state = producer._partitions[0].queue.state
    wait_until(lambda: state.unconfirmed.messages, TIMEOUT_S, "a send that waits")
    broker.cluster.go()
    assert isinstance(error(), BrokerGone)
