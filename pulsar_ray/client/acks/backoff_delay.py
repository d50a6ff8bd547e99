"""Asks an application's backoff for a delay."""

from __future__ import annotations

import logging

from pulsar_ray.client.options.policies import RedeliveryBackoff

logger = logging.getLogger(__name__)


def backoff_delay_ms(
    backoff: RedeliveryBackoff | None, failures: int, option: str, without_ms: int = 0
) -> int:
    """Return the delay after so many failures, and `without_ms` if the backoff fails.

    That is logged, by the name of the backoff's `option`: no message may be forgotten for it.
    """
    delay_ms = without_ms
    if backoff is not None:
        try:
            delay_ms = int(backoff.next(failures))
        except Exception:
            logger.exception("%s failed: the delay goes without it", option)
    return max(delay_ms, 0)
