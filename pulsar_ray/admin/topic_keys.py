"""`Admin.topics`: why messages wait, and whose a key is."""

from __future__ import annotations

from typing import Any

from pulsar_ray.admin.topic_calls import TopicCalls
from pulsar_ray.client.options.checks import check_text
from pulsar_ray.model.topic_name import TopicName


class TopicKeys(TopicCalls):
    """Questions to a subscription's dispatcher, which is started if it sleeps. Nothing changes.

    Of a partitioned topic each partition answers for itself, under `partitions`. Both raise TopicNotFound,
    SubscriptionNotFound.
    """

    def why_blocked(self, topic: str, subscription: str) -> dict[str, Any]:
        """Why messages of a durable subscription are not delivered just now.

        `reason` says it in a sentence. `hashes` are those of a Key_Shared subscription whose messages wait:
        `hash`, its `owner`, `heldBy` (who still has unacknowledged messages of it: `consumerName`,
        `unackMsgs`, `messageIds` as [ledger, entry, batch index or -1]), `waitingMessages`, `firstWaiting`,
        `blockedMs`. `consumers` are those that take nothing, with a `reason` each. At most 100 hashes, and
        100 ids of each consumer, are listed. (PIP-379 leaves such a call to a later one.)
        """
        return self._of_partitions(topic, subscription, "why_blocked")

    def key_owner(self, topic: str, subscription: str, key: str) -> dict[str, Any]:
        """The `hash` of a key or ordering key on a Key_Shared subscription, and its `owner`'s name or None.

        `drainedBy` names consumers that still have unacknowledged messages of a hash that has moved. Raises
        NotAllowedError if consumers of another type are connected.
        """
        check_text("key", key)
        return self._of_partitions(topic, subscription, "key_owner", key=key)

    def _of_partitions(self, topic: str, subscription: str, call: str, **arguments: Any) -> dict[str, Any]:
        check_text("subscription", subscription)
        found: dict[str, dict[str, Any]] = {
            route.topic: self._ask_dispatcher(route, subscription, call, **arguments)
            for route in self._routes_there(topic)
        }
        return found.get(TopicName.parse(topic).full) or {"partitions": found}
