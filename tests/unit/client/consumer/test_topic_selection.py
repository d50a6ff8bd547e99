"""The topics that a consumer selects, and their retry letter topics; the broker is a set of names."""

from __future__ import annotations

import re
from typing import Any

from pulsar_ray.client.consumer.topic_selection import selection_of
from pulsar_ray.client.options.consumer_options import ConsumerOptions
from pulsar_ray.errors import TopicNotFound
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.transport.cluster import PartitionRoute

ORDERS = "persistent://public/default/orders"
RETRIES = f"{ORDERS}-s-RETRY"


class Links:
    """Topics by their full names; `resolve` creates one."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def topics(self, _namespace: str, _deadline: float) -> list[tuple[str, int]]:
        return [(name, 0) for name in sorted(self.names)]

    def partitions(self, name: TopicName, _deadline: float) -> list[PartitionRoute]:
        if name.full not in self.names:
            raise TopicNotFound(name.full)
        return [PartitionRoute(name.full, -1, "")]

    def resolve(self, name: TopicName, deadline: float) -> list[PartitionRoute]:
        self.names.add(name.full)
        return self.partitions(name, deadline)


def test_a_retry_topic_that_is_deleted_stays_away_as_long_as_its_topic_is_there() -> None:
    links: Any = Links(ORDERS)
    topics = selection_of(
        ConsumerOptions.from_arguments(
            topic=re.compile("orders.*"),
            subscription_name="s",
            consumer_type=ConsumerType.Shared,
            enable_retry=True,
        )
    )

    def selected() -> set[str]:
        return {route.topic for route in topics.routes(links, 0.0, create=False)}

    assert selected() == links.names == {ORDERS, RETRIES}
    links.names.remove(RETRIES)
    assert selected() == {ORDERS}
    links.names.clear()
    assert selected() == topics.letter_topics == set()
    links.names.add(ORDERS)
    assert selected() == {ORDERS, RETRIES}
