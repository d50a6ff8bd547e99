"""The control calls that actors answer, and what their arguments may be.

They come in `Call` packets of sessions, and over actor handles from administrators and from Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.session.field_checks import (
    Check,
    are_properties,
    is_entry_seq,
    is_flag,
    is_number,
    is_position,
    is_seek_target,
    is_text,
)

Calls = Mapping[str, Mapping[str, Check]]
"""Method -> argument -> what it may be. All arguments have to be given."""


def check_call(calls: Calls, actor: str, method: str, arguments: Mapping[str, Any]) -> None:
    """Raise InvalidConfiguration for a call that there is not, or one with wrong arguments."""
    expected = calls.get(method)
    if expected is None:
        raise InvalidConfiguration(f"a {actor} has no call {method!r:.100}")
    if arguments.keys() != expected.keys():
        raise InvalidConfiguration(
            f"{method} takes {', '.join(expected) or 'no arguments'}, not {', '.join(arguments)!r:.200}"
        )
    for name, check in expected.items():
        if not check(arguments[name]):
            raise InvalidConfiguration(f"{method}: {name} cannot be {arguments[name]!r:.100}")


def _is_initial(value: Any) -> bool:
    return value in ("earliest", "latest") if type(value) is str else is_position(value)


def _is_bound(value: Any) -> bool:
    if type(value) is dict:
        return value.keys() == {"subscription"} and is_text(value["subscription"])
    return is_seek_target(value)


def _is_count(value: Any) -> bool:
    return is_number(value) and value > 0


def _are_entry_seqs(value: Any) -> bool:
    return type(value) in (list, tuple) and all(map(is_entry_seq, value))


_SEEK: Mapping[str, Check] = {"target": is_seek_target, "inclusive": is_flag}

PARTITION_CALLS: Calls = {
    "register_subscription": {
        "name": is_text,
        "durable": is_flag,
        "initial": _is_initial,
        "properties": are_properties,
        "create": is_flag,
    },
    "check_new_subscription": {"name": is_text},
    "set_subscription_properties": {"name": is_text, "properties": are_properties, "replace": is_flag},
    "remove_subscription": {"number": is_number},
    "hold_for_seek": {"number": is_number, **_SEEK},
    "seek_position": _SEEK,
    "last_message": {},
    "why_receipts_wait": {},
    "check_position": {"position": is_position},
    "grant_lease": {"first": is_position, "last": is_position, "expires_ms": is_number},
    "release_lease": {"lease_id": is_number},
    "append_message": {"key": is_text, "value": is_text},
    "read_messages": {"behind": is_position},
    "forget_producers": {"prefix": is_text},
    "producer_sequence_ids": {"prefix": is_text},
    "clear_backlog": {"subscription": is_text},
    "truncate": {},
    "compact": {"request_id": is_text},
    "compaction_status": {},
    "offload": {"request_id": is_text, "before": is_position},
    "offload_status": {},
    "fetch_back": {"request_id": is_text},
    "slow_down": {"bytes_per_s": _is_count, "for_ms": _is_count},
    "terminate": {},
    "end_messages": {"sending": _are_entry_seqs, "idle_ms": is_number},
    "measure_range": {
        "first": is_position,
        "batch_index": is_number,
        "end": is_position,
        "messages": _is_count,
        "stored_bytes": _is_count,
        "takes_one": is_flag,
    },
    "plan_range": {"start": _is_bound, "end": _is_bound, "slice_bytes": _is_count, "lease_ms": is_number},
    "plan_table": {"lease_ms": is_number},
}

ATTENDANCE_CALLS: Calls = {
    "admit_consumer": {
        "dispatcher": is_text,
        "consumers": is_number,
        "readers": is_number,
        "is_new_reader": is_flag,
    },
    "admit_subscription": {"name": is_text},
    "report_consumers": {"dispatcher": is_text, "consumers": is_number, "readers": is_number},
}
"""Of a partition, for dispatchers that follow it.

`dispatcher` is the name of its subscription, or "" for readers.
"""

CONSUMER_CALLS: Calls = {
    "seek": {"seek_id": is_number, **_SEEK},
    "check_unsubscribe": {},
    "unsubscribe": {},
    "last_message": {},
    "has_more": {"numbering": is_number, "received": is_number},
    "report_moves": {"moved": is_number, "error": is_text},
    "report_nacks": {"waiting": is_number, "due_in_ms": is_number},
}
"""Of a dispatcher, for a consumer that is open."""
