"""Starts that failed: the errors of those that may succeed later."""

from __future__ import annotations

import errno
from pathlib import Path

from pulsar_ray.errors import BrokerPersistenceError, DiskSpaceLow, NotAllowedError, PulsarException


def may_start_again(error: BaseException) -> bool:
    """Whether a start that failed may succeed later, when the actor is needed next.

    So for whatever is retriable, for a disk that was full or refused a write, the partition's too, and for a
    topic that has too many subscriptions now. Any other error is a refusal for good.
    """
    if isinstance(error, (OSError, BrokerPersistenceError, NotAllowedError)):
        return True
    return isinstance(error, PulsarException) and error.retriable


def refused_by_disk(directory: Path, error: OSError) -> BrokerPersistenceError:
    """Return the error of a start that the disk refused: DiskSpaceLow if it was full."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskSpaceLow(
            f"the disk of {directory} has no room for what a partition writes when it starts ({error}): free "
            "space, and it starts when it is needed next"
        )
    return BrokerPersistenceError(
        f"{directory}: the disk refused the start of the partition ({error}): see to the disk, and it starts "
        "when it is needed next"
    )
