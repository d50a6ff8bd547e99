"""The plans and the subscription that a query has by its name, and their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.errors import SubscriptionNotFound, TopicNotFound
from pulsar_ray_spark.errors import LandingInUse, QueryInUse
from pulsar_ray_spark.landing.land import check_name
from pulsar_ray_spark.landing.plan_log import PlanLog
from pulsar_ray_spark.streaming.planned_batch import decode_batch

_NAMESPACE = "public/default"


def subscription_of(name: str) -> str:
    """The durable subscription of a query."""
    return f"spark-{name}"


def plan_topic(name: str) -> str:
    """The topic of a query's plans; no pattern matches names that begin with __."""
    return f"persistent://{_NAMESPACE}/__spark-query-{name}"


class QueryPlans:
    """The plans of a query; see PlanLog."""

    def __init__(self, log: PlanLog, name: str) -> None:
        self._log = log
        self._name = name

    @property
    def last(self) -> bytes | None:
        """The record appended last, by whomever; None of a new query."""
        return self._log.last

    def append(self, record: bytes) -> None:
        """Replace the last record, durably. Raises QueryInUse if another process has taken the query."""
        try:
            self._log.append(record)
        except LandingInUse as error:
            raise QueryInUse(
                f"another process has taken query {self._name!r}, and goes on instead"
            ) from error


@contextmanager
def open_plans(client: Client, admin: Admin, name: str) -> Iterator[QueryPlans]:
    """Take a query's plans, and keep others out until the context is left. Raises QueryInUse."""
    try:
        log = PlanLog(client, admin, plan_topic(name))
    except LandingInUse as error:
        raise QueryInUse(
            f"query {name!r} runs already: stop it first, or take another name; the place of a process that "
            "was killed on another node is free after a minute"
        ) from error
    try:
        yield QueryPlans(log, name)
    finally:
        log.close()


def drop_query(name: str, *, service_url: str = "auto") -> None:
    """Forget a query that does not run: its subscriptions, positions and plans.

    Messages that it has not read are kept no longer. Does nothing for an unknown name, and may be repeated.
    Raises QueryInUse.
    """
    check_name(name)
    with Client(service_url) as client, Admin(service_url) as admin:
        forget_query(client, admin, name)


def forget_query(client: Client, admin: Admin, name: str) -> None:
    """Delete what the broker keeps of a query; see `drop_query`."""
    if plan_topic(name) not in admin.topics.list(_NAMESPACE):
        return
    with open_plans(client, admin, name) as plans:
        for partition in _partitions(plans.last):
            with suppress(TopicNotFound, SubscriptionNotFound):
                admin.topics.unsubscribe(partition, subscription_of(name), force=True)
    admin.topics.delete(plan_topic(name), force=True)


def _partitions(record: bytes | None) -> list[str]:
    if record is None:
        return []
    _, batch = decode_batch(record)
    return sorted({*batch.places, *batch.ends})
