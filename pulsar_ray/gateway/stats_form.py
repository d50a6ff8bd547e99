"""Gives stats every name and type that readers of Pulsar's REST insist on."""

from __future__ import annotations

from typing import Any

_RATE = 0.0
_TOPIC: dict[str, Any] = {
    "msgRateIn": _RATE,
    "msgThroughputIn": _RATE,
    "msgRateOut": _RATE,
    "msgThroughputOut": _RATE,
    "bytesInCounter": 0,
    "msgInCounter": 0,
    "bytesOutCounter": 0,
    "msgOutCounter": 0,
    "averageMsgSize": _RATE,
    "msgChunkPublished": False,
    "storageSize": 0,
    "backlogSize": 0,
    "earliestMsgPublishTimeInBacklogs": 0,
    "offloadedStorageSize": 0,
    "publishers": [],
    "waitingPublishers": 0,
    "subscriptions": {},
    "replication": {},
    "deduplicationStatus": "Disabled",
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "ownerBroker": "",
}
_SUBSCRIPTION: dict[str, Any] = {
    "msgRateOut": _RATE,
    "msgThroughputOut": _RATE,
    "bytesOutCounter": 0,
    "msgOutCounter": 0,
    "msgRateRedeliver": _RATE,
    "messageAckRate": _RATE,
    "chunkedMessageRate": 0,
    "msgBacklog": 0,
    "backlogSize": 0,
    "msgBacklogNoDelayed": 0,
    "blockedSubscriptionOnUnackedMsgs": False,
    "msgDelayed": 0,
    "unackedMessages": 0,
    "type": "",
    "msgRateExpired": _RATE,
    "totalMsgExpired": 0,
    "lastExpireTimestamp": 0,
    "lastConsumedFlowTimestamp": 0,
    "lastConsumedTimestamp": 0,
    "lastAckedTimestamp": 0,
    "lastMarkDeleteAdvancedTimestamp": 0,
    "consumers": [],
    "isDurable": True,
    "isReplicated": False,
    "allowOutOfOrderDelivery": False,
    "consumersAfterMarkDeletePosition": {},
    "nonContiguousDeletedMessagesRanges": 0,
    "nonContiguousDeletedMessagesRangesSerializedSize": 0,
    "subscriptionProperties": {},
    "durable": True,
    "replicated": False,
}


def topic_stats(stats: dict[str, Any]) -> dict[str, Any]:
    """Return stats of `Admin.topics` with Pulsar's names all there, and in Pulsar's types.

    Names that only pulsar_ray has come along.
    """
    described = _filled(_TOPIC, stats)
    described["ownerBroker"] = stats.get("host", "")
    described["subscriptions"] = {
        name: _filled(_SUBSCRIPTION, subscription)
        for name, subscription in stats.get("subscriptions", {}).items()
    }
    return described


def _filled(form: dict[str, Any], stats: dict[str, Any]) -> dict[str, Any]:
    described = {**form, **stats}
    for name, default in form.items():
        value = described[name]
        if value is None:
            described[name] = default
        elif isinstance(default, float):
            described[name] = float(value)
        elif isinstance(default, int) and not isinstance(default, bool) and isinstance(value, float):
            described[name] = int(value)
    return described
