"""The plans and the subscription that a query has by its name, and their end."""

from __future__ import annotations

from contextlib import suppress

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.errors import SubscriptionNotFound, TopicNotFound
from pulsar_ray_spark.errors import QueryInUse
from pulsar_ray_spark.rounds.plan_log import NAMESPACE, PlanLog, check_name, log_topic
from pulsar_ray_spark.streaming.planned_batch import decode_batch


def subscription_of(name: str) -> str:
    """The durable subscription of a query."""
    return f"spark-{name}"


def plan_topic(name: str) -> str:
    """The topic of a query's plans."""
    return log_topic(f"spark-query-{name}")


def open_plans(client: Client, admin: Admin, name: str) -> PlanLog:
    """Take a query's plans until they are closed. Raises QueryInUse."""
    return PlanLog(client, admin, plan_topic(name), f"query {name!r}", QueryInUse)


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
    if plan_topic(name) not in admin.topics.list(NAMESPACE):
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
