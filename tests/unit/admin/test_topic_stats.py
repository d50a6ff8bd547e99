from __future__ import annotations

from typing import Any

from pulsar_ray.admin.topic_stats import internal_stats, partition_stats, sum_of_partitions
from pulsar_ray.broker.partition.sleeping_partition import NO_QUOTA
from pulsar_ray.model.traffic import OutgoingTraffic


def publisher(name: str, rate: float = 2.0) -> dict[str, Any]:
    return {
        "producerName": name,
        "msgRateIn": rate,
        "msgThroughputIn": rate * 10,
        "averageMsgSize": 10.0,
        "msgInCounter": 5,
        "bytesInCounter": 50,
        "chunkedMessageRate": 1.0,
        "msgChunkPublished": True,
    }


def asleep(name: str, entry: int, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "durable": True,
        "isServed": False,
        "markDeletePosition": [1, entry],
        "individuallyDeletedRanges": 1,
        "individuallyDeletedEntries": 2,
        "individuallyDeletedMessages": "[(1:6..1:8]]",
        "subscriptionProperties": {},
        "problem": "",
        **changes,
    }


def actor(*subscriptions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "msgInCounter": 10,
        "bytesInCounter": 100,
        "msgRateIn": 4.0,
        "msgThroughputIn": 40.0,
        "averageMsgSize": 10.0,
        "chunkedMessageRate": 1.0,
        "msgChunkPublished": True,
        "storageSize": 1000,
        "ledgers": [[1, 10, 1000]],
        "producers": ["p"],
        "publishers": [publisher("p")],
        "subscriptions": list(subscriptions),
        "lastPosition": [1, 9],
        "epoch": 1,
        "isTerminated": False,
        "corruptions": [],
        "diskLow": False,
        "deduplicationStatus": "Disabled",
        "topicEpoch": -1,
        "waitingPublishers": 0,
        **NO_QUOTA,
        "pid": 5,
        **changes,
    }


def served(backlog: int, *names: str, **changes: Any) -> dict[str, Any]:
    """What a dispatcher says of a subscription."""
    traffic = OutgoingTraffic(0)
    traffic.delivered(3 * len(names), 1, 30 * len(names), 0, 7)
    return {
        **traffic.describe(),
        "type": "Shared",
        "activeConsumerName": "",
        "blockedSubscriptionOnUnackedMsgs": False,
        "msgRateExpired": 0.0,
        "totalMsgExpired": 0,
        "deadLetteredMessages": 2,
        "deadLetterError": "",
        "lastExpireTimestamp": 0,
        "lastMarkDeleteAdvancedTimestamp": 0,
        "msgBacklog": backlog,
        "unackedMessages": 1,
        "individuallyDeletedRanges": 2,
        "individuallyDeletedEntries": 3,
        "individuallyDeletedMessages": "[]",
        "markDeletePosition": [1, 4],
        "readPosition": [1, 8],
        "subscriptionProperties": {},
        "problem": "",
        "consumers": [{"consumerName": name} for name in names],
        **changes,
    }


def test_a_partition_with_durable_and_other_subscriptions() -> None:
    stats = partition_stats(actor(asleep("s", 4)), {"s": served(2, "a", "b")}, {"reader-1": served(1, "r")})
    assert stats["publishers"] == [publisher("p")]
    assert (stats["msgRateIn"], stats["averageMsgSize"]) == (4.0, 10.0)
    assert stats["msgOutCounter"] == 9
    assert stats["bytesOutCounter"] == 90
    one = stats["subscriptions"]["s"]
    assert (one["msgBacklog"], one["backlogSize"], one["durable"], one["isDurable"]) == (2, 200, True, True)
    assert one["nonContiguousDeletedMessagesRanges"] == 2
    assert stats["subscriptions"]["reader-1"]["isDurable"] is False
    assert stats["backlogSize"] == 200


def test_entries_that_a_dispatcher_has_not_heard_of_yet_are_in_its_backlog() -> None:
    behind = served(2, "a", logEnd=[1, 6], markDeletePosition=[1, 4], individuallyDeletedEntries=0)
    level = served(5, "a", logEnd=[1, 9], markDeletePosition=[1, 4], individuallyDeletedEntries=0)
    ahead = served(7, "a", logEnd=[1, 11], markDeletePosition=[1, 4], individuallyDeletedEntries=0)
    knows_none = served(0, "a", logEnd=[-1, -1], markDeletePosition=[1, 4], individuallyDeletedEntries=0)
    for dispatcher, backlog in ((behind, 5), (level, 5), (ahead, 7), (knows_none, 5)):
        one = partition_stats(actor(asleep("s", 4)), {"s": dispatcher}, {})["subscriptions"]["s"]
        assert (one["msgBacklog"], one["msgBacklogNoDelayed"]) == (backlog, backlog)


def test_whoever_sleeps_is_described_from_the_partitions_knowledge() -> None:
    stats = partition_stats(actor(asleep("s", 4), asleep("far", -1)), {}, {})
    one = stats["subscriptions"]["s"]
    assert (one["msgBacklog"], one["backlogSize"], one["readPosition"]) == (3, 300, [1, 5])
    assert (one["consumers"], one["unackedMessages"], one["type"]) == ([], 0, "")
    assert stats["subscriptions"]["far"]["msgBacklog"] == 8
    assert stats["backlogSize"] == 800, "of the slowest one"


def test_a_durable_and_another_of_one_name() -> None:
    stats = partition_stats(actor(asleep("s", 4)), {"s": served(2, "a")}, {"s": served(1, "r")})
    shown = {name: one["durable"] for name, one in stats["subscriptions"].items()}
    assert shown == {"s": True, "s (NonDurable)": False}


def test_what_cannot_serve_says_why() -> None:
    stats = partition_stats({"refused": "DataDirectoryInUse: ..."}, {}, {})
    assert stats["refused"] == "DataDirectoryInUse: ..."
    assert stats["msgInCounter"] == 0
    broken = partition_stats(actor(asleep("s", 4, problem="no cursor")), {}, {})
    assert broken["subscriptions"]["s"]["problem"] == "no cursor"


def test_the_sum_of_partitions() -> None:
    one = partition_stats(actor(asleep("s", 4)), {"s": served(4, "a", lastAckedTimestamp=5)}, {})
    changed = actor(
        asleep("s", 4), msgInCounter=5, msgRateIn=1.0, publishers=[publisher("p"), publisher("q")]
    )
    other = partition_stats(changed, {"s": served(6, "a", lastAckedTimestamp=9)}, {})
    total = sum_of_partitions([one, other, partition_stats({"refused": "gone"}, {}, {})])
    assert total["msgInCounter"] == 15
    assert total["msgOutCounter"] == 6
    assert total["storageSize"] == 2000
    assert (total["msgRateIn"], total["msgThroughputIn"], total["averageMsgSize"]) == (5.0, 80.0, 16.0)
    rates = {p["producerName"]: (p["msgRateIn"], p["msgInCounter"]) for p in total["publishers"]}
    assert rates == {"p": (4.0, 10), "q": (2.0, 5)}
    subscription = total["subscriptions"]["s"]
    assert (subscription["msgBacklog"], subscription["backlogSize"]) == (10, 400)
    assert subscription["lastAckedTimestamp"] == 9
    assert len(subscription["consumers"]) == 2
    assert "markDeletePosition" not in subscription, "positions are of one partition"
    assert total["metadata"] == {"partitions": 3}
    assert total["refused"] == "nothing is known of 1 of 3 partitions: gone"
    assert not total["away"]
    assert "refused" not in sum_of_partitions([one, other])
    assert len(one["subscriptions"]["s"]["consumers"]) == 1, "the parts stay as they are"


def test_internal_stats_in_pulsars_words() -> None:
    found = internal_stats(actor(asleep("s", 4), asleep("t", -1)), {"t": served(10, "c")})
    assert found["lastConfirmedEntry"] == "1:9"
    assert found["ledgers"] == [{"ledgerId": 1, "entries": 10, "size": 1000}]
    assert (found["numberOfEntries"], found["totalSize"], found["currentLedgerEntries"]) == (10, 1000, 10)
    assert found["cursors"]["s"] == {
        "markDeletePosition": "1:4",
        "readPosition": "1:5",
        "individuallyDeletedMessages": "[(1:6..1:8]]",
        "totalNonContiguousDeletedMessagesRange": 1,
        "numberOfEntriesSinceFirstNotAckedMessage": 5,
        "state": "Asleep",
        "active": False,
        "properties": {},
        "problem": "",
    }
    assert (found["cursors"]["t"]["state"], found["cursors"]["t"]["active"]) == ("Open", True)


def test_a_non_persistent_topic_tells_what_it_dropped() -> None:
    def passing(rate: float, counter: int) -> dict[str, Any]:
        drops = {"msgDropRate": rate, "msgDropCounter": counter}
        nowhere = {"isDurable": False, "markDeletePosition": [-1, -1], "msgBacklog": 0}
        return partition_stats(
            actor(asleep("s", -1), ledgers=[], publishers=[{**publisher("p"), **drops}]),
            {"s": served(0, "a", **nowhere, **drops)},
            {"reader-1": served(0, "r", **nowhere, **drops)},
        )

    one = passing(0.5, 30)
    assert (one["msgDropRate"], one["msgDropCounter"]) == (1.0, 60)
    assert one["subscriptions"]["s"]["isDurable"] is False
    assert one["backlogSize"] == 0
    total = sum_of_partitions([one, passing(0.25, 15)])
    assert total["subscriptions"]["s"]["msgDropCounter"] == 45
    assert [(p["msgDropRate"], p["msgDropCounter"]) for p in total["publishers"]] == [(0.75, 45)]
    assert (total["msgDropRate"], total["msgDropCounter"]) == (1.5, 90)
    assert "msgDropRate" not in partition_stats(actor(asleep("s", 4)), {}, {})
