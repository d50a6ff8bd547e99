"""Calls of the administration, on a few threads, and the names that requests give."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timezone
from typing import Any, TypeVar

from aiohttp import web

from pulsar_ray.admin.admin import Admin
from pulsar_ray.clock import written_time
from pulsar_ray.gateway.replies import Mapped, Refusal, text_of
from pulsar_ray.lane.waiting import retrieved
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName

T = TypeVar("T")
CALLS_AT_ONCE = 16
WAITING_CALLS = 256

TOPIC = "{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
NAMESPACE = "{tenant}/{namespace}"
_LATEST = 2**63 - 1


class Calls:
    """Runs calls of an Admin on a few threads.

    It refuses calls with 503 while too many wait. A call that waits still when whoever asked has gone is not
    made, but counts until a thread gets to it: it holds its arguments until then.
    """

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, "pulsar-ray-http")
        self._asked = 0

    async def __call__(
        self, function: Callable[..., T], *arguments: Any, mapped: tuple[Mapped, ...] = (), **named: Any
    ) -> T:
        """Call `function`, and return what it returns.

        Raises Refusal with the status of `mapped` for errors that are listed there.
        """
        if self._asked >= CALLS_AT_ONCE + WAITING_CALLS:
            raise Refusal(503, f"{self._asked} calls are under way or wait: try again")
        self._asked += 1
        call = _Call(functools.partial(function, *arguments, **named))
        answer: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(self._threads, call)
        answer.add_done_callback(self._over)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            call.is_given_up = True
            raise
        except Exception as error:
            status = next((one.status for one in mapped if isinstance(error, one.error)), None)
            if status is None:
                raise
            raise Refusal(status, text_of(error)) from error

    def _over(self, answer: asyncio.Future[Any]) -> None:
        self._asked -= 1
        retrieved(answer)

    def close(self) -> None:
        """Take no more calls; those under way come to their ends."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Call:
    """A call for one of the threads, unless it was given up before."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.is_given_up = False

    def __call__(self) -> Any:
        return None if self.is_given_up else self._function()


async def partitions_of(call: Calls, topic: str) -> list[str]:
    """Return the names of a topic's partitions, none where it has none."""
    name = TopicName.parse(topic)
    count = 0 if name.is_partition else await call(call.admin.topics.get_partitions, topic)
    return [name.partition(index).full for index in range(count)]


async def stats_of(call: Calls, topic: str) -> tuple[dict[str, Any], list[str]]:
    """Return the stats of a topic, and the names of its partitions."""
    names = await partitions_of(call, topic)
    topics = call.admin.topics
    return await call(topics.partitioned_stats if names else topics.stats, topic), names


def utc_ms(text: str) -> int:
    """Return a written time in ms since 1970: UTC, unless it says otherwise. Raises ValueError."""
    moment = written_time(text)
    return int(moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp() * 1000)


def due_ms(after_ms: Any) -> int:
    """Return when a message is due that waits for so many ms.

    In ms since 1970. Raises ValueError.
    """
    if type(after_ms) is not int or after_ms < 0:
        raise ValueError(f"deliverAfterMs={str(after_ms)[:100]}: send a number of ms")
    return time.time_ns() // 1_000_000 + after_ms


def topic_of(request: web.Request) -> str:
    """Return the full name of the topic in a path."""
    of = request.match_info
    return f"{of['domain']}://{of['tenant']}/{of['namespace']}/{of['topic']}"


def namespace_of(request: web.Request) -> str:
    """Return the namespace in a path."""
    return f"{request.match_info['tenant']}/{request.match_info['namespace']}"


def described_id(message_id: MessageId) -> dict[str, int]:
    """Return a message id as Pulsar's REST writes it."""
    described = {
        "ledgerId": message_id.ledger_id(),
        "entryId": message_id.entry_id(),
        "partitionIndex": message_id.partition(),
        "batchIndex": message_id.batch_index(),
    }
    return described if message_id.batch_index() < 0 else {**described, "batchSize": message_id.batch_size()}


def given_id(body: Any, topic: str) -> MessageId:
    """Return the message id of a JSON body. Raises Refusal unless it is one."""
    if body in ("earliest", "latest"):
        return MessageId.earliest if body == "earliest" else MessageId.latest
    if not isinstance(body, dict):
        raise Refusal(400, f"{str(body)[:100]!r} is no message id: send ledgerId and entryId")
    numbers = [body.get(name, -1) for name in ("partitionIndex", "ledgerId", "entryId", "batchIndex")]
    if any(type(number) is not int for number in numbers) or not {"ledgerId", "entryId"} <= body.keys():
        raise Refusal(400, f"{str(body)[:200]} is no message id: send ledgerId and entryId as whole numbers")
    partition, ledger_id, entry_id, batch_index = numbers
    if (ledger_id, entry_id) == (-1, -1):
        return MessageId.earliest
    if (ledger_id, entry_id) == (_LATEST, _LATEST):
        return MessageId.latest
    if partition < 0:
        partition = TopicName.parse(topic).partition_index
    return MessageId(partition, ledger_id, entry_id, batch_index)
