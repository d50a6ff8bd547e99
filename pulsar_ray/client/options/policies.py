"""Policies and callbacks a consumer may be given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from pulsar_ray.client.options.checks import (
    check_callable,
    check_enum,
    check_flag,
    check_number,
    check_optional_text,
    check_type,
    refuse,
)
from pulsar_ray.model.enums import KeySharedMode

_HASH_SLOTS = 65_536
_DEFAULT_BATCH_BYTES = 10 * 1024 * 1024


class ConsumerBatchReceivePolicy:
    """Limits of `batch_receive`: messages, bytes and milliseconds, whichever comes first.

    A number <= 0 is no limit.

    Raises ValueError if nothing is limited. Without a limit on count and bytes, bytes are limited to 10 MiB.
    """

    def __init__(self, max_num_message: int, max_num_bytes: int, timeout_ms: int) -> None:
        check_number("max_num_message", max_num_message)
        check_number("max_num_bytes", max_num_bytes)
        check_number("timeout_ms", timeout_ms)
        if max_num_message <= 0 and max_num_bytes <= 0 and timeout_ms <= 0:
            raise ValueError("at least one of max_num_message, max_num_bytes and timeout_ms must be above 0")
        if max_num_message <= 0 and max_num_bytes <= 0:
            max_num_message, max_num_bytes = -1, _DEFAULT_BATCH_BYTES
        self._max_num_message = max_num_message
        self._max_num_bytes = max_num_bytes
        self._timeout_ms = timeout_ms

    @property
    def max_num_message(self) -> int:
        return self._max_num_message

    @property
    def max_num_bytes(self) -> int:
        return self._max_num_bytes

    @property
    def timeout_ms(self) -> int:
        return self._timeout_ms

    def policy(self) -> ConsumerBatchReceivePolicy:
        return self


DEFAULT_BATCH_RECEIVE_POLICY = ConsumerBatchReceivePolicy(-1, _DEFAULT_BATCH_BYTES, 100)


class ConsumerKeySharedPolicy:
    """How keys are spread over the consumers of a Key_Shared subscription.

    `sticky_ranges` are inclusive pairs in 0..65535.

    Raises ValueError for Sticky without ranges, and for ranges that are empty, out of bounds, reversed or
    overlapping.
    """

    def __init__(
        self,
        key_shared_mode: KeySharedMode = KeySharedMode.AutoSplit,
        allow_out_of_order_delivery: bool = False,
        sticky_ranges: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        check_enum("key_shared_mode", key_shared_mode, KeySharedMode)
        check_flag("allow_out_of_order_delivery", allow_out_of_order_delivery)
        if sticky_ranges is not None:
            _check_sticky_ranges(sticky_ranges)
        elif key_shared_mode == KeySharedMode.Sticky:
            raise ValueError("KeySharedMode.Sticky needs sticky_ranges, for example [(0, 32767)]")
        self._key_shared_mode = key_shared_mode
        self._allow_out_of_order_delivery = allow_out_of_order_delivery
        self._sticky_ranges = [(int(first), int(last)) for first, last in sticky_ranges or ()]

    @property
    def key_shared_mode(self) -> KeySharedMode:
        return self._key_shared_mode

    @property
    def allow_out_of_order_delivery(self) -> bool:
        return self._allow_out_of_order_delivery

    @property
    def sticky_ranges(self) -> list[tuple[int, int]]:
        return list(self._sticky_ranges)

    def policy(self) -> ConsumerKeySharedPolicy:
        return self


def _check_sticky_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    expected = "a list of inclusive pairs (first, last) within 0..65535"
    if not isinstance(ranges, (list, tuple)) or not ranges:
        raise refuse("sticky_ranges", ranges, f"{expected}, and not empty")
    for pair in ranges:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise refuse("sticky_ranges", ranges, expected)
        first, last = pair
        if not isinstance(first, int) or not isinstance(last, int) or not 0 <= first <= last < _HASH_SLOTS:
            raise refuse("sticky_ranges", pair, expected)
    ordered = sorted(ranges)
    for (_, last), (first, _) in pairwise(ordered):
        if first <= last:
            raise refuse("sticky_ranges", ranges, "ranges that do not overlap")


@runtime_checkable
class RedeliveryBackoff(Protocol):
    """How long to wait before a failed message comes again."""

    def next(self, redelivery_count: int) -> int:
        """The milliseconds to wait before a failed message comes again.

        `redelivery_count` is the message's when it failed (0 at its first failure).
        """


class MultiplierRedeliveryBackoff:
    """min_delay * multiplier^count, at most max_delay."""

    def __init__(
        self, min_delay_ms: int = 10_000, max_delay_ms: int = 600_000, multiplier: float = 2.0
    ) -> None:
        check_number("min_delay_ms", min_delay_ms, 0)
        check_number("max_delay_ms", max_delay_ms, min_delay_ms)
        check_type("multiplier", multiplier, (int, float), "a number above 1")
        if not 1 < multiplier < float("inf"):
            raise refuse("multiplier", multiplier, "a number above 1")
        self.min_delay_ms = min_delay_ms
        self.max_delay_ms = max_delay_ms
        self.multiplier = multiplier

    def next(self, redelivery_count: int) -> int:
        if redelivery_count <= 0:
            return self.min_delay_ms
        try:
            return int(min(self.max_delay_ms, self.min_delay_ms * self.multiplier**redelivery_count))
        except OverflowError:
            return self.max_delay_ms if self.min_delay_ms else 0

    def __repr__(self) -> str:
        return f"MultiplierRedeliveryBackoff({self.min_delay_ms}, {self.max_delay_ms}, {self.multiplier})"


@dataclass(frozen=True)
class DeadLetterProducerContext:
    """The arguments of a customizer of the dead letter or retry letter producer."""

    default_topic_name: str
    input_topic_name: str
    input_topic_subscription_name: str
    input_topic_consumer_name: str


ProducerCustomizer = Callable[[DeadLetterProducerContext, dict[str, Any]], None]
"""Edits the keyword arguments of `create_producer` in place."""


class ConsumerDeadLetterPolicy:
    """After how many redeliveries a message is moved away, and where to.

    With `count_crashes=False` the end of a consumer's process counts as no failure, whatever ended it: then a
    message that ends each process comes for ever. Raises ValueError below one redelivery.
    """

    def __init__(
        self,
        max_redeliver_count: int,
        dead_letter_topic: str | None = None,
        initial_subscription_name: str | None = None,
        *,
        retry_letter_topic: str | None = None,
        dead_letter_producer_customizer: ProducerCustomizer | None = None,
        retry_letter_producer_customizer: ProducerCustomizer | None = None,
        count_crashes: bool = True,
    ) -> None:
        check_number("max_redeliver_count", max_redeliver_count, 1)
        check_optional_text("dead_letter_topic", dead_letter_topic)
        check_optional_text("initial_subscription_name", initial_subscription_name)
        check_optional_text("retry_letter_topic", retry_letter_topic)
        check_callable("dead_letter_producer_customizer", dead_letter_producer_customizer, "a function")
        check_callable("retry_letter_producer_customizer", retry_letter_producer_customizer, "a function")
        check_flag("count_crashes", count_crashes)
        self._max_redeliver_count = max_redeliver_count
        self._dead_letter_topic = dead_letter_topic or ""
        self._initial_subscription_name = initial_subscription_name or ""
        self._retry_letter_topic = retry_letter_topic or ""
        self.dead_letter_producer_customizer = dead_letter_producer_customizer
        self.retry_letter_producer_customizer = retry_letter_producer_customizer
        self._count_crashes = count_crashes

    @property
    def max_redeliver_count(self) -> int:
        return self._max_redeliver_count

    @property
    def dead_letter_topic(self) -> str:
        """Empty for the default name."""
        return self._dead_letter_topic

    @property
    def initial_subscription_name(self) -> str:
        """Empty if none is to be made."""
        return self._initial_subscription_name

    @property
    def retry_letter_topic(self) -> str:
        """Empty for the default name."""
        return self._retry_letter_topic

    @property
    def count_crashes(self) -> bool:
        """Whether a message that ended its consumer's process has failed."""
        return self._count_crashes

    def policy(self) -> ConsumerDeadLetterPolicy:
        return self


class ConsumerEventListener:
    """Receives notice of what happens to a consumer's partitions.

    The partition is -1 on an unpartitioned topic. The methods are called in a thread of their own; by
    `pulsar_ray.asyncio` on the event loop, where they may be coroutines.
    """

    def became_active(self, consumer: Any, partition_id: int) -> Any:
        """This consumer now gets the partition's messages."""

    def became_inactive(self, consumer: Any, partition_id: int) -> Any:
        """Another consumer gets them."""

    def partition_replaced(self, consumer: Any, partition_id: int) -> Any:
        """Another partition has taken the place of this one.

        The disk of the former one was given up as lost, say. All is gone that it held and that its
        subscriptions had not received. The consumer goes on with what comes to the new one, from its
        beginning. Told to all consumers of the partition, not to the active one alone. Pulsar's clients have
        no such call.
        """
