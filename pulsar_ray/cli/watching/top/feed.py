"""Asks the broker for what the view shows.

It runs in a process of its own: Ray can write where it likes there, and a broker that goes away takes nothing
of the terminal along. Run as `python -m pulsar_ray.cli.watching.top.feed SERVICE_URL DATA_DIR`: each line of
standard input is a request, each line of standard output its answer.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pulsar_ray.admin.admin import Admin
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, InvalidTopicName, PulsarException, TopicNotFound
from pulsar_ray.launch.connect import join_ray
from pulsar_ray.launch.embedded import read_record
from pulsar_ray.launch.lost_catalog import asked_controller
from pulsar_ray.transport.ray_cluster import RayCluster

PATIENCE_S = 5.0
"""A broker that does not answer for so long is said to be away."""
MAX_REASONS = 10
"""Subscriptions of a topic that are asked why they stand still."""
_SUBSCRIPTION_FIELDS = (
    "type", "msgRateOut", "msgRateRedeliver", "unackedMessages", "msgBacklog", "msgDelayed", "isDurable",
    "drainingHashesCount", "activeConsumerName",
)  # fmt: skip
_CONSUMER_FIELDS = (
    "consumerName", "msgRateOut", "messageAckRate", "msgRateRedeliver", "unackedMessages", "availablePermits",
    "drainingHashesCount", "connectedSince", "address", "carrier",
)  # fmt: skip


def check_runs(service_url: str, data_dir: str | None) -> None:
    """Raise ConnectError if no broker runs: looking at one must not start one."""
    record = read_record(Path(Settings.load(data_dir=data_dir).data_dir))
    is_named = data_dir is not None and record is not None
    if service_url != "local" and not is_named and join_ray(service_url):
        if asked_controller(RayCluster().describe_broker) is None:
            raise ConnectError("no broker runs on this Ray cluster: start it with `pulsar-ray start`")
    elif record is None:
        raise ConnectError("no broker runs here: start one with `pulsar-ray standalone`")


class Feed:
    """Answers requests of the view. No topic and no subscription is woken by them."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer with the `overview`, and the parts of a `topic` and its `subscription`.

        `missing` says that one of them is not there (any more). Raises what the broker raises.
        """
        topic, subscription = request.get("topic", ""), request.get("subscription", "")
        answer: dict[str, Any] = {
            "overview": self._admin.overview(
                request.get("filter", ""),
                sort=request.get("sort", "backlog"),
                limit=request.get("limit", 200),
            ),
            "topic": topic,
            "subscription": subscription,
        }
        if topic:
            try:
                answer |= self._of_topic(topic, subscription)
            except (TopicNotFound, InvalidTopicName) as error:
                answer["missing"] = error.text
        return answer

    def _of_topic(self, topic: str, subscription: str) -> dict[str, Any]:
        stats = self._admin.topics.stats(topic)
        (row,) = self._admin.overview(topics=[topic])["topics"] or [{}]
        ages = {name: one["oldestAgeSeconds"] for name, one in row.get("subscriptions", {}).items()}
        found = {
            "topicProblem": _topic_problem(stats),
            "subscriptions": self._subscriptions(topic, stats, ages),
        }
        if subscription:
            one = stats["subscriptions"].get(subscription)
            if one is None:
                return {**found, "missing": f"{topic} has no subscription {subscription}"}
            found |= self._of_subscription(topic, subscription, one)
        return found

    def _subscriptions(
        self, topic: str, stats: Mapping[str, Any], ages: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        rows = []
        reasons = 0
        for name, one in stats["subscriptions"].items():
            blocked = blocked_by(one)
            if not blocked and reasons < MAX_REASONS and stands_still(one):
                reasons += 1
                blocked = self._why(topic, name).get("reason", "")
            rows.append(
                {
                    "name": name,
                    **{field: one.get(field) for field in _SUBSCRIPTION_FIELDS},
                    "consumerCount": len(one["consumers"]),
                    "oldestAgeSeconds": ages.get(name),
                    "blocked": blocked,
                }
            )
        return rows

    def _of_subscription(self, topic: str, subscription: str, one: Mapping[str, Any]) -> dict[str, Any]:
        why = self._why(topic, subscription) if one["isDurable"] else {}
        reasons = {each["consumerName"]: each["reason"] for each in why.get("consumers", ())}
        consumers = [
            {
                **{field: each.get(field) for field in _CONSUMER_FIELDS},
                "blocked": reasons.get(each["consumerName"], ""),
            }
            for each in one["consumers"]
        ]
        return {
            "consumers": consumers,
            "reason": why.get("reason", ""),
            "hashes": why.get("hashes", []),
            "hashesNotShown": why.get("hashesNotShown", 0),
        }

    def _why(self, topic: str, subscription: str) -> dict[str, Any]:
        """Why messages wait, of all partitions whose dispatchers run, as that of one."""
        answers = self._admin.topics.why_blocked_awake(topic, subscription)
        if not answers:
            return {}
        all_acked = "everything is acknowledged"
        reasons = [each["reason"] for each in answers if each["reason"] != all_acked] or [all_acked]
        return {
            "reason": reasons[0],
            "hashes": [one for each in answers for one in each["hashes"]],
            "hashesNotShown": sum(each["hashesNotShown"] for each in answers),
            "consumers": [one for each in answers for one in each["consumers"]],
        }


def blocked_by(one: Mapping[str, Any]) -> str:
    """Say what is wrong with a subscription, as far as its stats tell."""
    if one["problem"]:
        return str(one["problem"])
    if one.get("stuckReason"):
        return f"stands still: {one['stuckReason']}"
    if one["blockedSubscriptionOnUnackedMsgs"]:
        return "too many unacknowledged messages"
    if one["msgBacklog"] and not one["consumers"]:
        return "no consumer"
    return str(one["deadLetterError"])


def stands_still(one: Mapping[str, Any]) -> bool:
    """Whether a subscription has messages and consumers, and none goes out, or keys wait."""
    waits = one["msgBacklog"] > 0 and one["consumers"] and not one["msgRateOut"]
    return bool(waits or one.get("drainingHashesCount"))


def _topic_problem(stats: Mapping[str, Any]) -> str:
    partitions = stats.get("partitions", {"": stats})
    problems = []
    for name, one in partitions.items():
        if one.get("refused"):
            problems.append(f"{name}: {one['refused']}" if name else one["refused"])
        elif one.get("diskLow"):
            problems.append("nothing is stored: the disk is low")
        elif one.get("backlogQuotaExceeded"):
            problems.append(f"nothing is stored: {one['backlogQuotaExceeded']}")
        elif one.get("corruptions"):
            problems.append(f"damaged: {one['corruptions'][0]}")
    return "; ".join(dict.fromkeys(problems))


def main(arguments: list[str]) -> int:
    """Answer until standard input ends, or the broker is gone."""
    service_url, data_dir = arguments
    # Answers alone go there: whatever else is printed in this process goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        check_runs(service_url, data_dir or None)
        with Admin(service_url, data_dir=data_dir or None, operation_timeout_seconds=PATIENCE_S) as admin:
            feed = Feed(admin)
            for line in sys.stdin:
                request = json.loads(line)
                tell(feed.answer(request))
    except PulsarException as error:
        tell({"problem": error.text or str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
