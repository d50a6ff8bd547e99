"""Base classes of Pulsar Functions.

They are plain classes, so that modules with functions can be imported and tested.
"""

from __future__ import annotations

import pickle
from abc import abstractmethod
from typing import Any


class SerDe:
    """Turns objects into bytes and back."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes:  # noqa: A002 - the official name
        ...

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any: ...


class PickleSerDe(SerDe):
    """Any object, by pickle."""

    def serialize(self, input: Any) -> bytes:  # noqa: A002
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        return pickle.loads(input_bytes)


class IdentitySerDe(SerDe):
    """Bytes as they are; numbers and text as text."""

    def serialize(self, input: Any) -> bytes:  # noqa: A002
        if type(input) in (int, float, complex, str):
            return str(input).encode()
        if isinstance(input, bytes):
            return input
        raise TypeError(f"IdentitySerde cannot serialize object of type {type(input)}")

    def deserialize(self, input_bytes: bytes) -> Any:
        for kind in (int, float, complex):
            try:
                return kind(input_bytes.decode())
            except ValueError:
                continue
        try:
            return input_bytes.decode()
        except UnicodeDecodeError:
            return input_bytes


class Function:
    """A function: `process` is called with each message."""

    @abstractmethod
    def process(self, input: Any, context: Context) -> Any:  # noqa: A002
        ...


class Context:
    """Tells a function about its message and its surroundings."""

    @abstractmethod
    def get_message_id(self) -> Any: ...

    @abstractmethod
    def get_message_key(self) -> Any: ...

    @abstractmethod
    def get_message_eventtime(self) -> Any: ...

    @abstractmethod
    def get_message_properties(self) -> Any: ...

    @abstractmethod
    def get_current_message_topic_name(self) -> Any: ...

    @abstractmethod
    def get_partition_key(self) -> Any: ...

    @abstractmethod
    def get_ordering_key(self) -> Any: ...

    @abstractmethod
    def get_function_name(self) -> Any: ...

    @abstractmethod
    def get_function_tenant(self) -> Any: ...

    @abstractmethod
    def get_function_namespace(self) -> Any: ...

    @abstractmethod
    def get_function_id(self) -> Any: ...

    @abstractmethod
    def get_function_version(self) -> Any: ...

    @abstractmethod
    def get_instance_id(self) -> Any: ...

    @abstractmethod
    def get_logger(self) -> Any: ...

    @abstractmethod
    def get_user_config_value(self, key: Any) -> Any: ...

    @abstractmethod
    def get_user_config_map(self) -> Any: ...

    @abstractmethod
    def get_secret(self, secret_name: Any) -> Any: ...

    @abstractmethod
    def record_metric(self, metric_name: Any, metric_value: Any) -> Any: ...

    @abstractmethod
    def publish(
        self,
        topic_name: Any,
        message: Any,
        serde_class_name: Any = "serde.IdentitySerDe",
        properties: Any = None,
        compression_type: Any = None,
        callback: Any = None,
        message_conf: Any = None,
    ) -> Any: ...

    @abstractmethod
    def get_input_topics(self) -> Any: ...

    @abstractmethod
    def get_output_topic(self) -> Any: ...

    @abstractmethod
    def get_output_serde_class_name(self) -> Any: ...

    @abstractmethod
    def ack(self, msgid: Any, topic: Any) -> Any: ...

    @abstractmethod
    def incr_counter(self, key: Any, amount: Any) -> Any: ...

    @abstractmethod
    def get_counter(self, key: Any) -> Any: ...

    @abstractmethod
    def del_counter(self, key: Any) -> Any: ...

    @abstractmethod
    def put_state(self, key: Any, value: Any) -> Any: ...

    @abstractmethod
    def get_state(self, key: Any) -> Any: ...
