"""Rows taken out of a receiver queue for one call, up to so many messages and bytes."""

from __future__ import annotations

from pulsar_ray.client.block_rows import BlockRows, Rows, items_of
from pulsar_ray.client.policies import DEFAULT_BATCH_RECEIVE_POLICY, ConsumerBatchReceivePolicy
from pulsar_ray.client.received_block import ReceivedBlock
from pulsar_ray.client.receivers import Origin

FOREVER_S = 1e9


class TakenRows:
    """What is there once the first came, or with `fills` as many as come until a limit is reached.

    A message above `max_bytes` comes alone.
    """

    def __init__(self, max_messages: int, max_bytes: int, *, fills: bool) -> None:
        self.parts: list[BlockRows] = []
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
        return self.is_full or (bool(self.parts) and not self._fills)

    def add(self, part: BlockRows, origin: Origin) -> int:
        """Take as many rows from the part's start as fit, and say how many; with less than all it is full."""
        block, rows = part
        wanted = rows[: self._messages_left]
        fitting, size = _fitting(block, wanted, self._bytes_left)
        fitting = max(fitting, 0 if self.parts else 1)
        if fitting:
            self.parts.append(BlockRows(block, rows[:fitting]))
            self.origins.append(origin)
        self._messages_left -= fitting
        self._bytes_left = self._bytes_left - size if fitting == len(wanted) else 0
        return fitting


def batch_limits(policy: ConsumerBatchReceivePolicy | None) -> tuple[TakenRows, float]:
    """What a batch receive takes, and for how long it waits, in seconds."""
    limits = policy or DEFAULT_BATCH_RECEIVE_POLICY
    most = limits.max_num_message if limits.max_num_message > 0 else 2**31
    size = limits.max_num_bytes if limits.max_num_bytes > 0 else 2**62
    timeout_s = limits.timeout_ms / 1000 if limits.timeout_ms > 0 else FOREVER_S
    return TakenRows(most, size, fills=policy is not None), timeout_s


def receive_timeout_s(timeout_millis: int) -> float:
    """In seconds. Raises ValueError for what is no int."""
    if not isinstance(timeout_millis, int):
        raise ValueError(f"timeout_millis={timeout_millis!r}: give an int (ms) or None")
    return timeout_millis / 1000


def _fitting(block: ReceivedBlock, rows: Rows, max_bytes: int) -> tuple[int, int]:
    """How many of these rows fit into so many bytes, and their size."""
    block_bytes = block.decoded.header.uncompressed_length
    if block_bytes < max_bytes:
        return len(rows), block_bytes * len(rows) // block.message_count
    size = 0
    for fitting, value in enumerate(items_of(block.values, rows)):
        length = len(value or b"")
        if size + length > max_bytes:
            return fitting, size
        size += length
    return len(rows), size
