from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.options.client_options import ClientOptions
from pulsar_ray.client.options.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.options.not_yet import NOT_YET, NotYet
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.client.producer.message_fields import message_fields
from pulsar_ray.errors import OperationNotSupported
from pulsar_ray.model.message_id import MessageId
from tests.unit.client.official_signatures import CLIENT, CREATE_PRODUCER, CREATE_READER, SEND, SUBSCRIBE

SIGNATURES = {
    "Client": CLIENT,
    "create_producer": CREATE_PRODUCER,
    "subscribe": SUBSCRIBE,
    "create_reader": CREATE_READER,
    "send": SEND,
}
EXAMPLES = [
    pytest.param(row, value, id=f"{row.call}-{row.parameter}-{index}")
    for row in NOT_YET
    for index, value in enumerate(row.examples)
]


def call_with(call: str, **arguments: Any) -> None:
    if call == "Client":
        ClientOptions.from_arguments(**arguments)
    elif call == "create_producer":
        ProducerOptions.from_arguments(**{"topic": "t", **arguments})
    elif call == "subscribe":
        ConsumerOptions.from_arguments(**{"topic": "t", "subscription_name": "s", **arguments})
    elif call == "create_reader":
        ReaderOptions.from_arguments(**{"topic": "t", "start_message_id": MessageId.earliest, **arguments})
    else:
        defaults = {name: default for name, default in SEND.parameters.items() if name != "content"}
        message_fields(**{**defaults, **arguments})


@pytest.mark.parametrize(("row", "value"), EXAMPLES)
def test_is_refused_with_parameter_value_and_remedy(row: NotYet, value: Any) -> None:
    with pytest.raises(OperationNotSupported) as caught:
        call_with(row.call, **{row.parameter: value})
    text = str(caught.value)
    assert f"{row.parameter}={value!r:.200} is not supported yet" in text
    assert row.remedy in text


@pytest.mark.parametrize("row", NOT_YET, ids=lambda row: f"{row.call}-{row.parameter}")
def test_the_default_is_not_refused(row: NotYet) -> None:
    assert row.parameter in SIGNATURES[row.call].parameters
    assert row.examples
    call_with(row.call)
