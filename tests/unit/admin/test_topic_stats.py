from __future__ import annotations

from typing import Any

from pulsar_ray.admin.topic_stats import partition_stats, refused_cursor, sum_of_partitions


def actor(**changes: Any) -> dict[str, Any]:
    return {
        "msgInCounter": 10,
        "bytesInCounter": 100,
        "storageSize": 1000,
        "producers": ["p"],
        "lastPosition": [1, 2],
        "epoch": 1,
        "corruptions": [],
        "diskLow": False,
        "pid": 5,
        **changes,
    }


def cursor(backlog: int, *names: str) -> dict[str, Any]:
    return {
        "msgBacklog": backlog,
        "unackedMessages": 1,
        "individuallyDeletedRanges": 2,
        "markDeletePosition": [1, 0],
        "readPosition": [1, 1],
        "problem": "",
        "consumers": [{"consumerName": name, "msgOutCounter": 3, "bytesOutCounter": 30} for name in names],
    }


def test_a_partition_with_durable_and_other_subscriptions() -> None:
    stats = partition_stats(actor(), {"s": cursor(4, "a", "b")}, {"reader-1": cursor(1, "r")})
    assert stats["publishers"] == [{"producerName": "p"}]
    assert stats["msgOutCounter"] == 9
    assert stats["bytesOutCounter"] == 90
    assert stats["subscriptions"]["s"]["msgBacklog"] == 4
    assert stats["subscriptions"]["s"]["isDurable"] is True
    assert stats["subscriptions"]["s"]["nonContiguousDeletedMessagesRanges"] == 2
    assert stats["subscriptions"]["reader-1"]["isDurable"] is False


def test_what_cannot_serve_says_why() -> None:
    stats = partition_stats({"refused": "DataDirectoryInUse: ..."}, {}, {})
    assert stats["refused"] == "DataDirectoryInUse: ..."
    assert stats["msgInCounter"] == 0
    healthy = partition_stats(actor(), {"s": refused_cursor("no cursor")}, {})
    assert healthy["subscriptions"]["s"]["problem"] == "no cursor"


def test_the_sum_of_partitions() -> None:
    one = partition_stats(actor(), {"s": cursor(4, "a")}, {})
    other = partition_stats(actor(msgInCounter=5, producers=["p", "q"]), {"s": cursor(6, "a")}, {})
    total = sum_of_partitions([one, other, partition_stats({"refused": "gone"}, {}, {})])
    assert total["msgInCounter"] == 15
    assert total["msgOutCounter"] == 6
    assert total["storageSize"] == 2000
    assert [publisher["producerName"] for publisher in total["publishers"]] == ["p", "q"]
    assert total["subscriptions"]["s"]["msgBacklog"] == 10
    assert len(total["subscriptions"]["s"]["consumers"]) == 2
    assert total["metadata"] == {"partitions": 3}
