"""Neighbouring rows taken out of a receiver queue for one call, up to so many messages and bytes."""

from __future__ import annotations

from pulsar_ray.client.message import RowSpan
from pulsar_ray.client.policies import DEFAULT_BATCH_RECEIVE_POLICY, ConsumerBatchReceivePolicy
from pulsar_ray.client.received_block import ReceivedBlock
from pulsar_ray.client.receivers import Origin

FOREVER_S = 1e9


class TakenSpans:
    """What is there once the first came, or with `fills` as many as come until a limit is reached.

    A message above `max_bytes` comes alone.
    """

    def __init__(self, max_messages: int, max_bytes: int, *, fills: bool) -> None:
        self.spans: list[RowSpan] = []
        self.origins: list[Origin] = []
        self._messages_left = max_messages
        self._bytes_left = max_bytes
        self._fills = fills

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached."""
        return self._messages_left <= 0 or self._bytes_left <= 0

    @property
    def is_enough(self) -> bool:
        """Whether nothing more has to be waited for."""
        return self.is_full or (bool(self.spans) and not self._fills)

    def add(self, span: RowSpan, origin: Origin) -> int:
        """Take as many rows from the span's start as fit, and say how many; with less than all it is full."""
        block, first, end = span
        last = min(end, first + self._messages_left)
        rows, size = _fitting(block, first, last, self._bytes_left)
        rows = max(rows, 0 if self.spans else 1)
        if rows:
            self.spans.append((block, first, first + rows))
            self.origins.append(origin)
        self._messages_left -= rows
        self._bytes_left = self._bytes_left - size if first + rows == last else 0
        return rows


def batch_limits(policy: ConsumerBatchReceivePolicy | None) -> tuple[TakenSpans, float]:
    """What a batch receive takes, and for how long it waits, in seconds."""
    limits = policy or DEFAULT_BATCH_RECEIVE_POLICY
    most = limits.max_num_message if limits.max_num_message > 0 else 2**31
    size = limits.max_num_bytes if limits.max_num_bytes > 0 else 2**62
    timeout_s = limits.timeout_ms / 1000 if limits.timeout_ms > 0 else FOREVER_S
    return TakenSpans(most, size, fills=policy is not None), timeout_s


def receive_timeout_s(timeout_millis: int) -> float:
    """In seconds. Raises ValueError for what is no int."""
    if not isinstance(timeout_millis, int):
        raise ValueError(f"timeout_millis={timeout_millis!r}: give an int (ms) or None")
    return timeout_millis / 1000


def _fitting(block: ReceivedBlock, first: int, end: int, max_bytes: int) -> tuple[int, int]:
    """How many of these rows fit into so many bytes, and their size."""
    block_bytes = block.decoded.header.uncompressed_length
    if block_bytes < max_bytes:
        return end - first, block_bytes * (end - first) // block.message_count
    size = 0
    for row in range(first, end):
        length = len(block.values[row] or b"")
        if size + length > max_bytes:
            return row - first, size
        size += length
    return end - first, size
