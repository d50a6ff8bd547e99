"""Stand-ins for the clients that commands use."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pulsar_ray.cli.target import Target
from pulsar_ray.client.received.message import BlockRows
from pulsar_ray.client.received.message_batch import MessageBatchView
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.config import Settings
from pulsar_ray.errors import PulsarException, Result
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.policies import AppliedPolicy, applied, find_policy


@dataclass
class FakeProducer:
    """Keeps what is sent and confirms it when flushed, or when asked for the third time what is pending.

    Fails messages from `fails_at` on with `error`.
    """

    error: PulsarException | None = None
    fails_at: int = 0
    interrupts_at: int = -1
    sent: list[tuple[bytes, str | None]] = field(default_factory=list)
    delays: list[tuple[int | None, timedelta | None]] = field(default_factory=list)
    waiting: list[Any] = field(default_factory=list)
    asked: int = 0
    name: str = "t"

    def topic(self) -> str:
        return f"persistent://public/default/{self.name}"

    def send_async(
        self,
        value: bytes,
        callback: Any,
        partition_key: str | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> None:
        if len(self.sent) == self.interrupts_at:
            signal.raise_signal(signal.SIGINT)
        self.sent.append((value, partition_key))
        self.delays.append((deliver_at, deliver_after))
        if self.error is not None and len(self.sent) > self.fails_at:
            callback.failed(self.error)
        else:
            self.waiting.append(callback)

    def pending_bytes(self) -> int:
        self.asked += 1
        if self.asked % 3 == 0:
            self.flush()
        return len(self.sent[-1][0]) // self.asked

    def flush(self) -> None:
        for callback in self.waiting:
            callback(Result.Ok, MessageId())
        self.waiting.clear()


@dataclass
class FakeConsumer:
    """Hands out batches of (value, key), then none."""

    batches: list[list[tuple[bytes | None, str | None]]]
    acknowledged: int = 0
    interrupts: bool = False

    def batch_receive(self) -> MessageBatchView:
        if not self.batches:
            if self.interrupts:
                signal.raise_signal(signal.SIGINT)
            return MessageBatchView([])
        return MessageBatchView(
            [
                BlockRows(ReceivedBlock.outgoing("persistent://public/default/t", value, key=key), [0])
                for value, key in self.batches.pop(0)
            ]
        )

    def has_message_available(self) -> bool:
        return bool(self.batches)

    def acknowledge(self, messages: Sequence[Any]) -> None:
        self.acknowledged += len(messages)


class FakeTopics:
    policies: FakePolicies

    def __init__(self, admin: FakeAdmin) -> None:
        self._admin = admin

    def partitions(
        self, namespace: str = "public/default", *, include_system_topic: bool = False
    ) -> dict[str, int]:
        return self._admin.topic_partitions if namespace == "public/default" else {}

    def create_topic(self, topic: str) -> None:
        self._admin.calls.append(("create", topic))

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        self._admin.calls.append(("create", topic, partitions))

    def delete(self, topic: str, force: bool) -> None:
        self._admin.calls.append(("delete", topic, force))

    def delete_many(self, topics: Sequence[str], force: bool) -> None:
        self._admin.calls.append(("delete_many", *topics, force))

    def terminate_topic(self, topic: str) -> MessageId:
        self._admin.calls.append(("terminate_topic", topic))
        return MessageId(-1, 5, 6)

    def terminate_partitioned_topic(self, topic: str) -> dict[int, MessageId]:
        self._admin.calls.append(("terminate_partitioned_topic", topic))
        return {number: MessageId(number, 5, 6) for number in (0, 1)}

    def unload(self, topic: str) -> None:
        self._admin.calls.append(("unload", topic))

    def truncate(self, topic: str) -> None:
        self._admin.calls.append(("truncate", topic))

    def compact(self, topic: str) -> None:
        self._admin.calls.append(("compact", topic))

    def compaction_status(self, topic: str) -> dict[str, Any]:
        self._admin.calls.append(("compaction_status", topic))
        return {"status": "RUNNING", "last_error": "", "progress": 0.5}

    def stats(self, topic: str) -> dict[str, Any]:
        copied: dict[str, Any] = json.loads(json.dumps(self._admin.topic_stats))
        return copied

    def stats_internal(self, topic: str) -> dict[str, Any]:
        return {**self.stats(topic), "call": "stats-internal"}

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        return {**self.stats(topic), "call": "partitioned-stats"}

    def redrive(self, topic: str, to: str | None, *, progress: Any, **options: Any) -> Any:
        self._admin.calls.append(("redrive", topic, to, *options.values()))
        moved = self._admin.answers["redrive"]
        progress(sum(moved.values()))
        return moved

    def __getattr__(self, name: str) -> Any:
        """Of the rest: keeps the call, and answers what `answers` has for it."""

        def call(*arguments: Any, **options: Any) -> Any:
            self._admin.calls.append((name, *arguments, *options.values()))
            return self._admin.answers.get(name)

        return call


class FakePolicies:
    """Policies of the level that a test asks for; `set_values` is what was set."""

    def __init__(self, admin: FakeAdmin, level: str) -> None:
        self._admin = admin
        self._level = level

    def list(self, subject: str) -> dict[str, AppliedPolicy]:
        self._admin.calls.append(("policies", subject))
        minutes, mebibytes = self._admin.retention
        settings = Settings(default_retention_time_in_minutes=minutes, default_retention_size_in_mb=mebibytes)
        found = applied(settings, {}, {} if self._level == "topic" else None)
        return {policy.name: policy for policy in found}

    def get(self, subject: str, name: str) -> AppliedPolicy:
        find_policy(name, self._level)
        return self.list(subject)[name]

    def set(self, subject: str, name: str, **values: Any) -> None:
        self._admin.calls.append(("set", subject, name, values))

    def remove(self, subject: str, name: str) -> None:
        self._admin.calls.append(("remove", subject, name))


class Recorder:
    """Keeps each call with its arguments, and answers what `answers` has for it."""

    def __init__(self, admin: FakeAdmin, prefix: str, policies: FakePolicies | None = None) -> None:
        self._admin = admin
        self._prefix = prefix
        self.policies = policies

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self._admin.calls.append((f"{self._prefix}.{name}", *arguments, *sorted(options.items())))
            return self._admin.answers.get(f"{self._prefix}.{name}", [])

        return call


class FakeAdmin:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.answers: dict[str, Any] = {}
        self.retention = (0, 0)
        self.topic_partitions: dict[str, int] = {}
        self.topic_stats: dict[str, Any] = {"subscriptions": {"s": {"isDurable": True}}}
        self.topics = FakeTopics(self)
        self.topics.policies = FakePolicies(self, "topic")
        self.tenants = Recorder(self, "tenants")
        self.brokers = Recorder(self, "brokers")
        self.namespaces = Recorder(self, "namespaces", FakePolicies(self, "namespace"))

    def stats(self) -> dict[str, Any]:
        return {
            "stores": [{"path": "data", "freeBytes": 5_000_000_000, "totalBytes": 10_000_000_000}],
            "actors": {"persistent://public/default/t": {"pid": 17}, "gone": {"error": "ActorDiedError"}},
        }

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("close")


class FakeClient:
    def __init__(self, producer: FakeProducer, consumer: FakeConsumer) -> None:
        self.producer = producer
        self.consumer = consumer
        self.options: dict[str, Any] = {}
        self.is_closed = False

    def create_producer(self, topic: str, **options: Any) -> FakeProducer:
        self.options = {"topic": topic, **options}
        return self.producer

    def subscribe(self, topic: str, subscription: str, kind: Any, **options: Any) -> FakeConsumer:
        self.options = {"topic": topic, "subscription": subscription, "type": kind, **options}
        return self.consumer

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


class FakeTarget(Target):
    """Goes into the context in the place of the global options."""

    def __init__(self, producer: FakeProducer | None = None, consumer: FakeConsumer | None = None) -> None:
        super().__init__()
        object.__setattr__(self, "the_admin", FakeAdmin())
        object.__setattr__(
            self, "the_client", FakeClient(producer or FakeProducer(), consumer or FakeConsumer([]))
        )

    the_admin: FakeAdmin
    the_client: FakeClient

    def client(self) -> Any:
        return self.the_client

    def admin(self) -> Any:
        return self.the_admin
