"""A batch receive collects messages up to a number and a size."""

from __future__ import annotations

from pulsar_ray.client.options.policies import DEFAULT_BATCH_RECEIVE_POLICY, ConsumerBatchReceivePolicy
from pulsar_ray.client.received.message import BlockRows, Rows, items_of
from pulsar_ray.client.received.received_block import ReceivedBlock
from pulsar_ray.client.received.receiver_queue import Origin

FOREVER_S = 1e9
ANY_BYTES = 2**62
"""Of a collector that does not count them."""


class BatchCollector:
    """Collects rows up to a number of messages and bytes.

    With `fills` it waits until a limit is reached, else it has enough once the first rows came. A message
    above `max_bytes` comes alone. Of a whole block its bytes count, of some of its rows those of the values.
    """

    def __init__(self, max_messages: int, max_bytes: int, *, fills: bool) -> None:
        self.parts: list[BlockRows] = []
        self.origins: list[Origin] = []
        self.is_full = False
        """Whether a limit is reached."""
        self._messages_left = max_messages
        self._bytes_left = max_bytes
        self._counts_bytes = max_bytes < ANY_BYTES
        self._fills = fills

    @property
    def is_enough(self) -> bool:
        """Whether the call need not wait for more."""
        return self.is_full or (bool(self.parts) and not self._fills)

    def add(self, part: BlockRows, origin: Origin) -> int:
        """Take as many rows from the part's start as fit; returns their number.

        The collector is full if these are not all.
        """
        block, rows = part
        count = len(rows)
        if count < self._messages_left and block.decoded.header.uncompressed_length < self._bytes_left:
            self._messages_left -= count
            if self._counts_bytes:
                self._bytes_left -= _size(block, rows)
        else:
            count = self._add_last(block, rows)
            part = BlockRows(block, rows[:count])
        if count:
            self.parts.append(part)
            self.origins.append(origin)
        return count

    def _add_last(self, block: ReceivedBlock, rows: Rows) -> int:
        """How many of these rows fit, if they may be too many or too large."""
        wanted = rows[: self._messages_left]
        fitting, size = _fitting(block, wanted, self._bytes_left)
        if not fitting and not self.parts:
            fitting, size = 1, self._bytes_left  # it is larger than all that may come at once
        self._messages_left -= fitting
        self._bytes_left = self._bytes_left - size if fitting == len(wanted) else 0
        self.is_full = self._messages_left <= 0 or self._bytes_left <= 0
        return fitting


def batch_limits(policy: ConsumerBatchReceivePolicy | None) -> tuple[BatchCollector, float]:
    """A collector for one batch receive, and how long it waits, in seconds."""
    limits = policy or DEFAULT_BATCH_RECEIVE_POLICY
    most = limits.max_num_message if limits.max_num_message > 0 else 2**31
    size = limits.max_num_bytes if limits.max_num_bytes > 0 else ANY_BYTES
    timeout_s = limits.timeout_ms / 1000 if limits.timeout_ms > 0 else FOREVER_S
    return BatchCollector(most, size, fills=policy is not None), timeout_s


def _size(block: ReceivedBlock, rows: Rows) -> int:
    """The bytes of these rows of a block; they may be of any size."""
    if len(rows) == block.message_count:
        return block.decoded.header.uncompressed_length
    if block.is_columnar:
        return _mean_bytes(block) * len(rows)
    return sum(map(len, filter(None, items_of(block.values, rows))))


def _mean_bytes(block: ReceivedBlock) -> int:
    """The share of each row of columns, which has no bytes of its own."""
    return max(block.decoded.header.uncompressed_length // block.message_count, 1)


def _fitting(block: ReceivedBlock, rows: Rows, max_bytes: int) -> tuple[int, int]:
    """How many of these rows fit into so many bytes, and their size."""
    if block.decoded.header.uncompressed_length < max_bytes:
        return len(rows), _size(block, rows)
    if block.is_columnar:
        mean_bytes = _mean_bytes(block)
        fitting = min(max_bytes // mean_bytes, len(rows))
        return fitting, fitting * mean_bytes
    size = 0
    for fitting, value in enumerate(items_of(block.values, rows)):
        length = len(value or b"")
        if size + length > max_bytes:
            return fitting, size
        size += length
    return len(rows), size
