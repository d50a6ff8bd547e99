from __future__ import annotations

from typing import Any

import pytest

from pulsar_ray.client.options.authentication import AuthenticationBasic, AuthenticationToken
from pulsar_ray.client.options.policies import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
    MultiplierRedeliveryBackoff,
    RedeliveryBackoff,
)
from pulsar_ray.model.enums import KeySharedMode


def test_backoff_rows_are_the_waits_before_each_redelivery() -> None:
    backoff = MultiplierRedeliveryBackoff(1000, 60_000, 2)
    assert [backoff.next(count) for count in range(8)] == [
        1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000,
    ]  # fmt: skip
    assert isinstance(backoff, RedeliveryBackoff)


def test_backoff_defaults_and_huge_counts() -> None:
    backoff = MultiplierRedeliveryBackoff()
    assert (backoff.min_delay_ms, backoff.max_delay_ms, backoff.multiplier) == (10_000, 600_000, 2.0)
    assert backoff.next(100_000) == 600_000
    assert MultiplierRedeliveryBackoff(0, 10).next(100_000) == 0
    assert backoff.next(-1) == 10_000


@pytest.mark.parametrize(
    "wrong", [(-1, 5, 2), (5, 4, 2), (1, 2, 1), (1, 2, "2"), (1, 2, float("inf")), (1.5, 2, 2)]
)
def test_backoff_refuses(wrong: tuple[Any, Any, Any]) -> None:
    with pytest.raises(ValueError):
        MultiplierRedeliveryBackoff(*wrong)


def test_batch_receive_policy_limits() -> None:
    policy = ConsumerBatchReceivePolicy(10, -1, -1)
    assert (policy.max_num_message, policy.max_num_bytes, policy.timeout_ms) == (10, -1, -1)
    timeout_only = ConsumerBatchReceivePolicy(0, 0, 50)
    assert (timeout_only.max_num_message, timeout_only.max_num_bytes) == (-1, 10 * 1024 * 1024)
    for wrong in ((0, 0, 0), (-1, -1, -1), (1, 1, None)):
        with pytest.raises(ValueError):
            ConsumerBatchReceivePolicy(*wrong)


@pytest.mark.parametrize("count", [None, 0, -1, "3"])
def test_dead_letter_policy_needs_at_least_one_redelivery(count: Any) -> None:
    with pytest.raises(ValueError, match="max_redeliver_count"):
        ConsumerDeadLetterPolicy(count)


def test_unset_names_of_a_dead_letter_policy_read_back_empty() -> None:
    policy = ConsumerDeadLetterPolicy(3)
    assert (policy.max_redeliver_count, policy.dead_letter_topic, policy.initial_subscription_name) == (
        3,
        "",
        "",
    )
    assert policy.retry_letter_topic == ""


def test_a_dead_letter_policy_counts_crashes_unless_told_not_to() -> None:
    assert ConsumerDeadLetterPolicy(3).count_crashes
    assert not ConsumerDeadLetterPolicy(3, count_crashes=False).count_crashes
    with pytest.raises(ValueError, match="count_crashes"):
        ConsumerDeadLetterPolicy(3, count_crashes="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ranges",
    [[], [(0, 65_536)], [(-1, 5)], [(5, 4)], [(0, 10), (10, 20)], [(0, 100), (5, 6)], [(1,)], ["ab"], "0-5"],
    ids=str,
)
def test_sticky_ranges_refused(ranges: Any) -> None:
    with pytest.raises(ValueError, match="sticky_ranges"):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)


def test_sticky_ranges_read_back_as_given() -> None:
    ranges = [(30_001, 65_535), (0, 30_000)]
    policy = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=ranges)
    assert policy.sticky_ranges == ranges
    assert ConsumerKeySharedPolicy().sticky_ranges == []
    edges = ConsumerKeySharedPolicy(KeySharedMode.Sticky, sticky_ranges=[(False, True)]).sticky_ranges[0]
    assert [type(edge) for edge in edges] == [int, int], "a dispatcher takes nothing else"


def test_sticky_without_ranges_is_refused() -> None:
    with pytest.raises(ValueError, match="sticky_ranges"):
        ConsumerKeySharedPolicy(KeySharedMode.Sticky)


def test_authentication_arguments() -> None:
    AuthenticationToken(lambda: "token")
    with pytest.raises(ValueError, match="token"):
        AuthenticationToken(5)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="JSON"):
        AuthenticationBasic(auth_params_string="{")
    with pytest.raises(ValueError, match="username"):
        AuthenticationBasic()
