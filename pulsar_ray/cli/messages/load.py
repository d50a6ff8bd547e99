"""Threads that produce or consume as fast as they may, and their latencies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.client.received.message import items_of
from pulsar_ray.errors import PulsarException

if TYPE_CHECKING:
    from pulsar_ray.client.consumer.consumer import Consumer
    from pulsar_ray.client.producer.producer import Producer
    from pulsar_ray.model.message_id import MessageId

_PER_DOUBLING = 32
_BUCKETS = 2048


class Latencies:
    """Durations in nanoseconds, each known to 3 %. One thread adds while others look."""

    __slots__ = ("_buckets",)

    def __init__(self, buckets: list[int] | None = None) -> None:
        self._buckets = buckets or [0] * _BUCKETS

    def add(self, nanoseconds: int, times: int = 1) -> None:
        """A duration that occurred so many times; below 0 counts as 0."""
        self._buckets[_bucket(nanoseconds)] += times

    def copy(self) -> Latencies:
        """A copy of the counts as they are now."""
        return Latencies(self._buckets.copy())

    def since(self, earlier: Latencies) -> Latencies:
        """The durations that were added after `earlier` was copied from these."""
        return Latencies([now - then for now, then in zip(self._buckets, earlier._buckets, strict=True)])

    @staticmethod
    def total(parts: Iterable[Latencies]) -> Latencies:
        """All of them together."""
        buckets = [part._buckets for part in parts]  # noqa: SLF001 - of its own kind
        return Latencies([sum(counts) for counts in zip(*buckets, strict=True)])

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self._buckets)

    def percentile(self, percent: float) -> int:
        """The nanoseconds that so many percent do not exceed; 0 without any."""
        wanted = self.count * percent / 100
        seen = 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if count and seen >= wanted:
                return _upper_bound(bucket)
        return 0

    def summary(self) -> str:
        """The usual percentiles."""
        values = [f"p{percent:g} {self.percentile(percent) / 1e6:.2f}" for percent in (50, 95, 99, 99.9)]
        return " ".join(values) + " ms"


def _bucket(value: int) -> int:
    """Exact below one doubling, then so many buckets for each."""
    if value < _PER_DOUBLING:
        return max(value, 0)
    doublings = min(value.bit_length(), 64) - _PER_DOUBLING.bit_length()
    return min(doublings * _PER_DOUBLING + (value >> doublings), _BUCKETS - 1)


def _upper_bound(bucket: int) -> int:
    if bucket < _PER_DOUBLING:
        return bucket
    doublings, place = divmod(bucket - _PER_DOUBLING, _PER_DOUBLING)
    return ((place + _PER_DOUBLING + 1) << doublings) - 1


_PAUSE_S = 0.01


class Meter:
    """Counters of one thread, which writes them while others read."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.latencies = Latencies()


class Load:
    """Runs `work(meter, quota)` in threads until each is done, `stop` is set, or one fails."""

    def __init__(self, threads: int, count: int | None) -> None:
        self.meters = [Meter() for _ in range(threads)]
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._count = count
        self._quotas = _shares(count, threads)
        # Not joins: Python takes a thread for ended if Ctrl-C comes while it is joined.
        self._threads: list[threading.Thread] = []
        self._ends = [threading.Event() for _ in range(threads)]

    def start(self, work: Callable[[Meter, int | None], None]) -> None:
        """Begin."""
        self._threads = [
            threading.Thread(target=self._run, args=(work, *each), daemon=True)
            for each in zip(self.meters, self._quotas, self._ends, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def _run(
        self,
        work: Callable[[Meter, int | None], None],
        meter: Meter,
        quota: int | None,
        end: threading.Event,
    ) -> None:
        try:
            work(meter, quota)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self.error = self.error or error
            self.stop.set()
        finally:
            end.set()

    @property
    def has_all(self) -> bool:
        """Whether the threads together have as many messages as are wanted."""
        return self._count is not None and sum(meter.messages for meter in self.meters) >= self._count

    @property
    def is_running(self) -> bool:
        """Whether any thread is still at work."""
        return not all(end.is_set() for end in self._ends)

    def wait(self, timeout_s: float) -> None:
        """Wait so long, or until every thread has ended."""
        deadline = time.monotonic() + timeout_s
        for end in self._ends:
            end.wait(max(0.0, deadline - time.monotonic()))

    def finish(self) -> None:
        """Let every thread end, and raise what one of them raised."""
        self.stop.set()
        for thread, end in zip(self._threads, self._ends, strict=False):
            # Ctrl-C may come before all of them are started.
            while thread.is_alive() and not end.is_set():
                end.wait(_PAUSE_S)
        if self.error is not None:
            raise self.error


def _shares(count: int | None, threads: int) -> list[int | None]:
    if count is None:
        return [None] * threads
    return [count // threads + (index < count % threads) for index in range(threads)]


class _TimedReceipt(ErrorCallback):
    """The callback of one message."""

    __slots__ = ("_meter", "_sent_ns", "_size", "_store")

    def __init__(self, meter: Meter, size: int, store: Callable[[PulsarException], None]) -> None:
        self._meter = meter
        self._size = size
        self._store = store
        self._sent_ns = time.perf_counter_ns()

    def __call__(self, result: Any, message_id: MessageId) -> None:
        meter = self._meter
        meter.latencies.add(time.perf_counter_ns() - self._sent_ns)
        meter.messages += 1
        meter.bytes += self._size

    def failed(self, error: PulsarException) -> None:
        self._store(error)


def produce(
    producer: Producer, payload: bytes, rate: float, load: Load, meter: Meter, quota: int | None
) -> None:
    """Send `quota` messages, or until the load stops.

    At most `rate` a second; 0 stands for no limit.
    """
    failures: list[PulsarException] = []
    started, sent, size = time.perf_counter(), 0, len(payload)
    while (quota is None or sent < quota) and not load.stop.is_set() and not failures:
        if rate and sent > (time.perf_counter() - started) * rate:
            load.stop.wait(min(1 / rate, _PAUSE_S))
            continue
        producer.send_async(payload, _TimedReceipt(meter, size, failures.append))
        sent += 1
    producer.flush()
    if failures:
        raise failures[0]


def consume(consumer: Consumer, load: Load, meter: Meter) -> None:
    """Receive and acknowledge until the load has all or stops; latency is since publishing.

    No thread has a share of its own: which consumer gets a message the broker decides.
    """
    while not load.has_all and not load.stop.is_set():
        messages = consumer.batch_receive()
        now_ms = time.time() * 1000
        for block, rows in messages.parts:
            meter.latencies.add(int((now_ms - block.publish_time_ms) * 1e6), len(rows))
            meter.bytes += sum(map(len, filter(None, items_of(block.values, rows))))
        consumer.acknowledge(messages)
        meter.messages += len(messages)
