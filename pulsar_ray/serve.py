"""Task queues give `@task_consumer` deployments of Ray Serve tasks without Celery and Redis.

A task is a message of the topic that has the queue's name, and all replicas share one subscription of it. It
is durable when it is enqueued, and runs again where a replica died; a replica that is scaled down gives back
what it holds, which counts as no failure (ADR 0112).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import math
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ray.serve.config import AutoscalingContext
from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.client.consumer.reader import Reader
from pulsar_ray.client.options.checks import check_number, check_seconds
from pulsar_ray.client.options.policies import ConsumerDeadLetterPolicy
from pulsar_ray.client.producer.producer import Producer
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import (
    AlreadyClosed,
    InvalidMessage,
    MessageTooBig,
    NotAllowedError,
    PulsarException,
    Timeout,
    TopicNotFound,
)
from pulsar_ray.model.enums import ConsumerType, InitialPosition
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName

__all__ = ["QueueLengthPolicy", "TaskQueue", "TaskQueueConfig"]

SUBSCRIPTION = "tasks"
PENDING, STARTED, RETRY = "PENDING", "STARTED", "RETRY"
SUCCESS, FAILURE, REVOKED = "SUCCESS", "FAILURE", "REVOKED"
_ENDS = (SUCCESS, REVOKED)
_TASK_ID, _TASK_NAME, _REASON = "task_id", "task_name", "reason"
_MAX_REASON_CHARACTERS = 1000
"""A longer text of an error is cut to fit into a property."""
_LOOK_MS = 500
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskQueueConfig:
    """The `adapter_config` of a TaskProcessorConfig may be this, a dict of its names, or None."""

    service_url: str = "auto"
    namespace: str = "public/default"
    retry_delay_seconds: float = 1.0
    """How long a task that failed waits until it is tried again."""
    results_kept_seconds: float = 24 * 3600.0
    """How long the status and the result of a task can be asked for."""
    max_results: int = 100_000
    """A process that asks keeps so many of the latest in memory."""
    client: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `Client`."""

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be."""
        check_seconds("retry_delay_seconds", self.retry_delay_seconds)
        check_seconds("results_kept_seconds", self.results_kept_seconds)
        check_number("max_results", self.max_results, 1)

    @classmethod
    def of(cls, given: TaskQueueConfig | dict[str, Any] | None) -> TaskQueueConfig:
        """Take an `adapter_config` as it was given. Raises ValueError, TypeError for an unknown name."""
        if isinstance(given, cls):
            return given
        if given is None or isinstance(given, dict):
            return cls(**(given or {}))
        raise TypeError(f"adapter_config={given!r}: give a TaskQueueConfig, a dict of its values, or None")


class _Results:
    """Knows the latest states of tasks, as a topic tells them.

    Those are the last `max_results` of the time that is kept.
    """

    def __init__(self, client: Client, topic: str, config: TaskQueueConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._states: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()
        self._reader: Reader = client.create_reader(topic, MessageId.earliest)
        self._reader.seek(int((time.time() - config.results_kept_seconds) * 1000))
        self._is_over = threading.Event()
        self._caught_up = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="pulsar-ray-tasks", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for message in _each(self._reader.read_next, self._is_over, self._caught_up.set):
            self._take(message)
            # Where tasks end all the time there is never a pause.
            if not self._caught_up.is_set() and not self._has_more():
                self._caught_up.set()

    def _has_more(self) -> bool:
        try:
            return self._reader.has_message_available()
        except PulsarException:
            return True  # asked again behind the next message

    def _take(self, message: Message) -> None:
        try:
            told = json.loads(message.data())
            state = {name: told[name] for name in ("status", "result", "at")}
        except (KeyError, TypeError, ValueError):
            logger.warning("%s is no state of a task", message.message_id())
            return
        at = message.publish_timestamp() / 1000
        with self._lock:
            former = self._states.pop(message.partition_key(), None)
            # A task that is run again after its end was told stays ended; one that failed may be redriven.
            if former is not None and former[1]["status"] in _ENDS:
                state = former[1]
            self._states[message.partition_key()] = (at, state)
            oldest = time.time() - self._config.results_kept_seconds
            while self._states and (
                len(self._states) > self._config.max_results or next(iter(self._states.values()))[0] < oldest
            ):
                self._states.popitem(last=False)

    def find(self, task_id: str, wait_s: float) -> dict[str, Any] | None:
        """Return a task's state, None if nothing is known of it.

        Waits until all that is kept was read, for so long.
        """
        self._caught_up.wait(wait_s)
        with self._lock:
            found = self._states.get(task_id)
        return None if found is None else found[1]

    def close(self) -> None:
        self._is_over.set()
        self._reader.close()
        self._thread.join(_LOOK_MS / 100)


class TaskQueue(TaskProcessorAdapter):
    """This is the adapter of a TaskProcessorConfig: `adapter="pulsar_ray.serve.TaskQueue"`.

    Arguments and results of tasks are JSON. A task whose handler raises is tried `max_retries` times more and
    then moved to the topic `failed_task_queue_name`, by default the queue's name with "-failed"; one that has
    no handler or cannot be read goes to `unprocessable_task_queue_name`, by default with "-unprocessable".
    """

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__(config)  # type: ignore[no-untyped-call]
        self._config = TaskQueueConfig.of(config.adapter_config)
        self._max_retries = 3 if config.max_retries is None else config.max_retries
        self._topic = self._named(config.queue_name)
        self._results_topic = self._named(f"{config.queue_name}-results")
        self._failed_topic = self._named(config.failed_task_queue_name or f"{config.queue_name}-failed")
        self._unprocessable_topic = self._named(
            config.unprocessable_task_queue_name or f"{config.queue_name}-unprocessable"
        )
        self._handlers: dict[str, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._producers: dict[str, Producer] = {}
        self._results: _Results | None = None
        self._is_stopped = threading.Event()
        self._concurrency = 1
        self._threads: list[threading.Thread] = []

    def _named(self, name: str) -> str:
        return _topic(name, self._config.namespace)

    # --- connecting -------------------------------------------------------------------------------

    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Connect, and make the topics that are not there, with subscriptions that keep what comes.

        Raises ConnectError, NotAllowedError where topics may not be made.
        """
        self._concurrency = consumer_concurrency
        self._connected()
        with self._admin() as admin:
            for topic in (self._topic, self._failed_topic, self._unprocessable_topic):
                _keep(admin, topic)
            _keep_for(admin, self._results_topic, self._config.results_kept_seconds)

    def _admin(self) -> Admin:
        return Admin(self._config.service_url, data_dir=self._config.client.get("data_dir"))

    def _connected(self) -> Client:
        with self._lock:
            if self._client is None:
                self._client = Client(self._config.service_url, **self._config.client)
            return self._client

    def _producer(self, topic: str) -> Producer:
        client = self._connected()
        with self._lock:
            if topic not in self._producers:
                self._producers[topic] = client.create_producer(topic)
            return self._producers[topic]

    def _followed_results(self) -> _Results:
        client = self._connected()
        with self._lock:
            if self._results is None:
                self._results = _Results(client, self._results_topic, self._config)
            return self._results

    # --- enqueueing -------------------------------------------------------------------------------

    def enqueue_task_sync(
        self, task_name: str, args: Any | None = None, kwargs: Any | None = None, **options: Any
    ) -> TaskResult:
        """Enqueue a task, which is durable when this returns.

        Options: `task_id`, and `deliver_after` or `deliver_at` as of `Producer.send`. Raises InvalidMessage
        for arguments that are not JSON.
        """
        task_id = str(options.pop("task_id", None) or uuid.uuid4())
        if not (isinstance(args, (list, tuple, type(None))) and isinstance(kwargs, (dict, type(None)))):
            # A text would become a list of its letters.
            raise InvalidMessage(f"task {task_name!r} takes args as a list or tuple, and kwargs as a dict")
        try:
            content = json.dumps({"args": list(args or ()), "kwargs": kwargs or {}}).encode()
        except (TypeError, ValueError) as error:
            raise InvalidMessage(f"arguments of task {task_name!r} are not JSON: {error}") from None
        properties = {_TASK_ID: task_id, _TASK_NAME: task_name}
        self._producer(self._topic).send(content, properties=properties, **options)
        return TaskResult(id=task_id, status=PENDING, created_at=time.time(), result=None)

    def get_task_status_sync(self, task_id: str) -> TaskResult:
        """Return a task's status, and its result or the text of its error.

        PENDING also stands for a task that nobody knows.
        """
        state = self._followed_results().find(task_id, self._connected().operation_timeout_s)
        if state is None:
            return TaskResult(id=task_id, status=PENDING, result=None)
        return TaskResult(id=task_id, status=state["status"], created_at=state["at"], result=state["result"])

    def cancel_task_sync(self, task_id: str) -> None:
        """Have a task not begin that has not begun; one that runs goes on."""
        self._tell(task_id, REVOKED, None)

    # --- running ----------------------------------------------------------------------------------

    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Have tasks of this name run by a function, or by a coroutine function."""
        self._handlers[name or func.__name__] = func

    def start_consumer(self, **_kwargs: Any) -> None:
        """Begin to run tasks, as many at once as Serve's concurrency says. Returns at once."""
        self._is_stopped.clear()
        self._followed_results()
        consumer = self._connected().subscribe(
            self._topic,
            SUBSCRIPTION,
            ConsumerType.Shared,
            # Nobody else can begin a task that a replica holds in advance.
            receiver_queue_size=self._concurrency,
            negative_ack_redelivery_delay_ms=int(self._config.retry_delay_seconds * 1000),
            initial_position=InitialPosition.Earliest,
            dead_letter_policy=ConsumerDeadLetterPolicy(
                max(self._max_retries, 1), self._failed_topic, SUBSCRIPTION
            ),
        )
        self._threads = [
            threading.Thread(target=self._run, args=(consumer,), name=f"task-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def stop_consumer(self, timeout: float = 10.0) -> None:
        """Begin no task any more, wait for those that run, and give back what waits.

        A task that runs for longer than `timeout` seconds comes to another replica as well.
        """
        self._is_stopped.set()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            client, self._client = self._client, None
            results, self._results = self._results, None
            self._producers.clear()
        if results is not None:
            results.close()
        if client is not None:
            client.close()

    def _run(self, consumer: Consumer) -> None:
        for message in _each(consumer.receive, self._is_stopped):
            try:
                self._work(consumer, message)
            except Exception:
                # Its end could not be told or recorded: it comes again.
                logger.exception("task %s comes again", message.properties().get(_TASK_ID))
                with contextlib.suppress(PulsarException):
                    consumer.negative_acknowledge(message)

    def _work(self, consumer: Consumer, message: Message) -> None:
        properties = message.properties()
        # Without an id of its own, which a task has that others publish, it must not pass for another one.
        task_id = properties.get(_TASK_ID) or str(message.message_id())
        name = properties.get(_TASK_NAME, "")
        known = self._followed_results().find(task_id, self._connected().operation_timeout_s)
        if known is not None and known["status"] in _ENDS:
            consumer.acknowledge(message)
            return
        try:
            content = json.loads(message.data())
            handler, args, kwargs = self._handlers[name], content["args"], content["kwargs"]
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no handler, or no task: {error!r}"[:_MAX_REASON_CHARACTERS]
            self._tell(task_id, FAILURE, reason)
            self._move(consumer, message, self._unprocessable_topic, reason)
            return
        self._tell(task_id, STARTED, None)
        try:
            result = handler(*args, **kwargs)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            json.dumps(result)  # a result that cannot be told is a failure
        except BaseException as error:  # noqa: BLE001 - whatever a task raises is its failure; sys.exit() too
            self._failed(consumer, message, task_id, error)
            return
        try:
            self._tell(task_id, SUCCESS, result)
        except MessageTooBig as error:
            self._failed(consumer, message, task_id, error)
            return
        consumer.acknowledge(message)

    def _failed(self, consumer: Consumer, message: Message, task_id: str, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"[:_MAX_REASON_CHARACTERS]
        logger.warning("task %s failed: %s", task_id, text, exc_info=error)
        if self._max_retries == 0 or message.failures >= self._max_retries:
            self._tell(task_id, FAILURE, text)
            if self._max_retries == 0:
                self._move(consumer, message, self._failed_topic, text)
                return
        else:
            self._tell(task_id, RETRY, text)
        consumer.negative_acknowledge(message)

    def _move(self, consumer: Consumer, message: Message, topic: str, reason: str) -> None:
        properties = {**message.properties(), _REASON: reason}
        self._producer(topic).send(message.data(), properties=properties)
        consumer.acknowledge(message)

    def _tell(self, task_id: str, status: str, result: Any) -> None:
        state = {"status": status, "result": result, "at": time.time()}
        self._producer(self._results_topic).send(json.dumps(state).encode(), partition_key=task_id)

    # --- watching ---------------------------------------------------------------------------------

    def get_metrics_sync(self) -> dict[str, Any]:
        """Count the tasks that wait, run, failed and could not be processed, and the replicas."""
        with self._admin() as admin:
            waiting = _subscription(admin, self._topic)
            return {
                "queue_length": waiting.get("msgBacklog", 0) - waiting.get("unackedMessages", 0),
                "in_hand": waiting.get("unackedMessages", 0),
                "consumers": len(waiting.get("consumers", ())),
                "failed": _stored(admin, self._failed_topic),
                "unprocessable": _stored(admin, self._unprocessable_topic),
            }

    def health_check_sync(self) -> list[dict[str, Any]]:
        """Name the replicas that are connected.

        Raises ConnectError, Timeout if the broker does not answer.
        """
        with self._admin() as admin:
            consumers = _subscription(admin, self._topic).get("consumers", ())
        return [{each["consumerName"]: {"ok": "connected"}} for each in consumers]

    # --- asyncio ----------------------------------------------------------------------------------

    async def enqueue_task_async(
        self, task_name: str, args: Any | None = None, kwargs: Any | None = None, **options: Any
    ) -> TaskResult:
        """As `enqueue_task_sync`."""
        return await asyncio.to_thread(self.enqueue_task_sync, task_name, args, kwargs, **options)

    async def get_task_status_async(self, task_id: str) -> TaskResult:
        """As `get_task_status_sync`."""
        return await asyncio.to_thread(self.get_task_status_sync, task_id)

    async def cancel_task_async(self, task_id: str) -> None:
        """As `cancel_task_sync`."""
        await asyncio.to_thread(self.cancel_task_sync, task_id)

    async def get_metrics_async(self) -> dict[str, Any]:
        """As `get_metrics_sync`."""
        return await asyncio.to_thread(self.get_metrics_sync)

    async def health_check_async(self) -> list[dict[str, Any]]:
        """As `health_check_sync`."""
        return await asyncio.to_thread(self.health_check_sync)


def _each(
    receive: Callable[[int], Message], is_over: threading.Event, idle: Callable[[], None] = lambda: None
) -> Iterator[Message]:
    """Yield the messages that come, until the end or a close.

    `idle` is called when none came for a while.
    """
    while not is_over.is_set():
        try:
            message = receive(_LOOK_MS)
        except Timeout:
            idle()
        except AlreadyClosed:
            return
        except PulsarException:
            logger.exception("a message of tasks could not be received")
            is_over.wait(_LOOK_MS / 1000)
        else:
            yield message


async def _awaited(result: Any) -> Any:
    return await result


def _topic(name: str, namespace: str) -> str:
    return TopicName.parse(name if "/" in name else f"{namespace}/{name}").full


def _keep(admin: Admin, topic: str) -> None:
    """Make a topic with a subscription that keeps all that is published."""
    with contextlib.suppress(NotAllowedError):
        admin.topics.create_topic(topic)
    with contextlib.suppress(NotAllowedError):
        admin.topics.create_subscription(topic, SUBSCRIPTION, MessageId.earliest)


def _keep_for(admin: Admin, topic: str, seconds: float) -> None:
    """Make a topic that keeps what is published for a time, whoever reads it."""
    with contextlib.suppress(NotAllowedError):
        admin.topics.create_topic(topic)
    minutes = math.ceil(seconds / 60)
    kept = admin.topics.policies.get(topic, "retention").value
    if kept["retention_time_in_minutes"] != minutes:
        admin.topics.policies.set(
            topic, "retention", retention_time_in_minutes=minutes, retention_size_in_mb=-1
        )


def _subscription(admin: Admin, topic: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = admin.topics.stats(topic)["subscriptions"].get(SUBSCRIPTION, {})
    except TopicNotFound:
        return {}
    return found


def _stored(admin: Admin, topic: str) -> int:
    try:
        stats = admin.topics.stats(topic)
    except TopicNotFound:
        return 0
    return max([each["msgBacklog"] for each in stats["subscriptions"].values()], default=0)


class QueueLengthPolicy:
    """Scales replicas by the tasks that wait: the `policy_function` of an AutoscalingPolicy.

    It is Serve's AsyncInferenceAutoscalingPolicy, whose brokers are Redis and RabbitMQ: requests and waiting
    tasks together, divided by `target_ongoing_requests`.
    """

    def __init__(
        self,
        queue_name: str,
        service_url: str = "auto",
        namespace: str = "public/default",
        data_dir: str | None = None,
        poll_interval_s: float = 10.0,
    ) -> None:
        check_seconds("poll_interval_s", poll_interval_s)
        self._topic = _topic(queue_name, namespace)
        self._admin = Admin(service_url, data_dir=data_dir)
        self._poll_interval_s = poll_interval_s
        self._polled_at = -math.inf
        self._poll: asyncio.Future[None] | None = None
        self._queue_length = 0

    def _look(self) -> None:
        try:
            self._queue_length = _subscription(self._admin, self._topic).get("msgBacklog", 0)
        except PulsarException as error:
            logger.warning("the length of queue %s is not known: %s", self._topic, error)

    def __call__(self, ctx: AutoscalingContext) -> tuple[int | float, dict[str, Any]]:
        """Return how many replicas are wanted, and the length that was counted last."""
        now = time.monotonic()
        if (self._poll is None or self._poll.done()) and now - self._polled_at >= self._poll_interval_s:
            self._polled_at = now
            self._poll = asyncio.get_running_loop().run_in_executor(None, self._look)
        work = ctx.total_num_requests + self._queue_length
        told = {"queue_length": self._queue_length}
        if not ctx.current_num_replicas:
            return (1 if work else 0), told
        config: Any = ctx.config
        return work / config.get_target_ongoing_requests(), told
