from __future__ import annotations

import asyncio
import dataclasses
import inspect
from typing import Annotated, Any

import pytest

from pulsar_ray.asyncio.client import Client as AsyncioClient
from pulsar_ray.asyncio.producer import Producer as AsyncioProducer
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.checks import check_flag
from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.options.declared import checks_of
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.options.schema import BytesSchema
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.model.message_id import MessageId
from tests.unit.client.official_signatures import (
    CLIENT,
    CREATE_PRODUCER,
    CREATE_READER,
    CREATE_TABLE_VIEW,
    REQUIRED,
    SEND,
    SEND_ASYNC,
    SUBSCRIBE,
    Signature,
    declared,
)

OPTION_CLASSES: list[tuple[Any, Signature]] = [
    (ClientOptions, CLIENT),
    (ProducerOptions, CREATE_PRODUCER),
    (ConsumerOptions, SUBSCRIBE),
    (ReaderOptions, CREATE_READER),
]


@pytest.mark.parametrize(("options", "signature"), OPTION_CLASSES)
def test_option_classes_hold_every_parameter_with_its_default(options: Any, signature: Signature) -> None:
    fields = declared(options)
    assert fields == signature.parameters
    assert list(fields) == list(signature.parameters)


UNCHECKED = {"crypto_key_reader", "settings"}
"""The first is refused whatever it is, the second is checked by `config`."""


@pytest.mark.parametrize("options", [options for options, _ in OPTION_CLASSES])
def test_every_option_declares_its_check(options: Any) -> None:
    checked = {name for name, _ in checks_of(options)}
    assert {field.name for field in dataclasses.fields(options)} - checked <= UNCHECKED


def test_a_declared_option_is_missed_where_the_public_method_does_not_take_it() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class WithOneMore(ReaderOptions):
        starts_slowly: Annotated[bool, check_flag] = False

    signature = Signature.of(WithOneMore, CREATE_READER.official)
    assert "starts_slowly" in str(signature.differences(Client.create_reader))
    with pytest.raises(ValueError, match="starts_slowly"):
        WithOneMore.from_arguments(topic="t", start_message_id=MessageId.latest, starts_slowly=1)


def test_official_parameter_counts_are_those_of_the_reference() -> None:
    counts = [len(s.official) for s in (CLIENT, CREATE_PRODUCER, SUBSCRIBE, CREATE_READER, SEND, SEND_ASYNC)]
    assert counts == [17, 22, 26, 11, 10, 11]


OFFICIAL_ASYNCIO = [
    (AsyncioClient.create_producer, CREATE_PRODUCER, {"batching_enabled": True, "schema": None}, [], []),
    (
        AsyncioClient.subscribe,
        SUBSCRIBE,
        {"schema": None, "is_pattern_topic": False},
        ["message_listener", "pattern_auto_discovery_period"],
        ["is_pattern_topic"],
    ),
    (AsyncioClient.create_reader, CREATE_READER, {"schema": None}, ["reader_listener"], []),
    (AsyncioProducer.send, SEND, {"disable_replication": None}, [], []),
]


@pytest.mark.parametrize(("method", "signature", "defaults", "left_out", "added"), OFFICIAL_ASYNCIO)
def test_asyncio_methods_take_the_same_but_for_the_official_differences(
    method: Any, signature: Signature, defaults: dict[str, Any], left_out: list[str], added: list[str]
) -> None:
    expected = {name: signature.official[name] for name in signature.official if name not in left_out}
    additions = {name: signature.additions[name] for name in signature.additions if name not in left_out}
    # The official one has no say in it for asyncio; ours has, by keyword, as its other additions.
    period = "pattern_auto_discovery_period"
    additions |= {period: signature.official[period]} if period in left_out else {}
    expected = {**expected, **dict.fromkeys(added), **defaults}
    assert Signature(expected, additions).differences(method) == []


def test_no_difference_to_a_method_with_exactly_these_parameters() -> None:
    class Reference:
        def create_reader(
            self,
            topic: str,
            start_message_id: Any,
            schema: Any = BytesSchema(),  # noqa: B008
            reader_listener: Any = None,
            receiver_queue_size: int = 1000,
            reader_name: str | None = None,
            subscription_role_prefix: str | None = None,
            is_read_compacted: bool = False,
            crypto_key_reader: Any = None,
            start_message_id_inclusive: bool = False,
            crypto_failure_action: Any = CREATE_READER.defaults["crypto_failure_action"],
        ) -> None: ...

    assert Signature(CREATE_READER.official, {}).differences(Reference.create_reader) == []


def test_a_lost_moved_or_changed_parameter_is_named() -> None:
    signature = Signature(official={"topic": REQUIRED, "size": 5}, additions={"extra": None})

    def lost(topic: str, *, extra: None = None) -> None: ...
    def moved(size: int = 5, topic: str = "", *, extra: None = None) -> None: ...
    def changed(topic: str, size: int = 6, *, extra: None = None) -> None: ...
    def bool_for_int(topic: str, size: bool = True, *, extra: None = None) -> None: ...
    def addition_in_front(topic: str, size: int = 5, extra: None = None) -> None: ...

    for function in (lost, moved, changed, bool_for_int, addition_in_front):
        assert signature.differences(function), function.__name__


@pytest.mark.parametrize(
    ("signature", "function"),
    [
        (CLIENT, Client.__init__),
        (CREATE_PRODUCER, Client.create_producer),
        (SUBSCRIBE, Client.subscribe),
        (CREATE_READER, Client.create_reader),
        (CREATE_TABLE_VIEW, Client.create_table_view),
        (SEND, Producer.send),
        (SEND_ASYNC, Producer.send_async),
    ],
)
def test_the_public_classes_have_exactly_these_parameters(signature: Signature, function: Any) -> None:
    assert signature.differences(function) == []


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((), {}, "missing 1 required positional argument: 'topic'"),
        (("t",), {"batching": True}, "got an unexpected keyword argument 'batching'"),
        (("t",), {"topic": "t"}, "got multiple values for argument 'topic'"),
        (
            tuple("abcdefghijklmnopqrstuvwxyz"),
            {},
            "takes from 2 to 23 positional arguments but 27 were given",
        ),
    ],
)
def test_a_wrong_call_names_the_method_that_was_called(arguments: Any, keywords: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        Client("head:6379").create_producer(*arguments, **keywords)
    assert str(caught.value) == f"Client.create_producer() {message}"
    with pytest.raises(TypeError) as caught:
        asyncio.run(AsyncioClient("head:6379").create_producer(*arguments, **keywords))
    assert str(caught.value) == f"Client.create_producer() {message}"


def test_help_shows_types_without_their_checks() -> None:
    shown = str(inspect.signature(Client.create_producer))
    assert "producer_name: str | None = None" in shown
    assert "Annotated" not in shown
    assert (Client.create_producer.__doc__ or "").startswith("Create a producer")
    assert inspect.iscoroutinefunction(AsyncioClient.create_producer)
