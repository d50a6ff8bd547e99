"""Puts into words what a store's journal tells of itself by `StoreJournal.status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def problem_of(status: Mapping[str, Any]) -> str:
    """Say why a store does not ship all that it should; "" if it does."""
    if problem := status.get("problem"):
        return str(problem)
    if disk := status.get("disk"):
        return f"the disk is not read, so nothing of it is shipped: {disk}"
    if away := status.get("away"):
        return f"{status['url']} {away}"
    for partition, why in status.get("unreadable", {}).items():
        return f"partition {partition} is shipped no further: {why}"
    for partition, why in status.get("untaken", {}).items():
        return f"partition {partition} is not shipped: {why}"
    return ""


def remark_of(status: Mapping[str, Any]) -> str:
    """Say which cost grows although all is shipped; "" if none does."""
    if undeleted := status.get("undeleted"):
        return (
            f"{status['url']} grows, since what is needed no more cannot be deleted: {undeleted}; "
            "give the right to delete objects of the prefix"
        )
    return ""
