"""Topics and their subscriptions: `/admin/v2/persistent/...` and `/lookup/v2/...`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from pulsar_ray.errors import InvalidConfiguration, NotAllowedError, OperationNotSupported, TopicNotFound
from pulsar_ray.gateway.calls import (
    NAMESPACE,
    TOPIC,
    Calls,
    described_id,
    given_id,
    namespace_of,
    topic_of,
)
from pulsar_ray.gateway.doors import GuardedRoutes
from pulsar_ray.gateway.replies import (
    Mapped,
    Refusal,
    body_of,
    done,
    flag_of,
    found,
    nothing_like,
    number_of,
)
from pulsar_ray.gateway.stats_form import topic_stats
from pulsar_ray.gateway.stored_messages import message_answer
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.security.authorization import Right

EXISTS = (Mapped(NotAllowedError, 409),)
IN_USE = (Mapped(NotAllowedError, 412),)
WRONG_KIND = (Mapped(NotAllowedError, 405), Mapped(OperationNotSupported, 405))
_A_TOPIC = f"/admin/v2/{TOPIC}"
_A_SUBSCRIPTION = f"{_A_TOPIC}/subscription/{{subscription}}"
_NOT_HERE = {
    "properties": "properties of topics",
    "backlog": "estimates of backlogs; stats have the backlog of each subscription",
    "subscription/{subscription}/replicatedSubscriptionStatus": "replication",
    "subscription/{subscription}/analyzeBacklog": "analysis of backlogs; stats have the backlog",
    "createMissedPartitions": "partitions that are missing",
    "internal-info": "internal-info; internalStats has the ledgers and cursors",
    "backlogSize": "sizes behind a message",
}


class TopicRoutes:
    """Routes of topics, each a call of `Admin.topics`."""

    def __init__(
        self, calls: Calls, own_url: Callable[[], str], release: Callable[[str], Awaitable[None]]
    ) -> None:
        self._call = calls
        self._topics = calls.admin.topics
        self._url = own_url
        self._release = release
        """Closes what requests that publish have left open of a topic."""

    def add_to(self, routes: GuardedRoutes) -> None:
        """Add the routes; those with fixed words come before those with names."""
        lists = f"/admin/v2/{{domain:persistent|non-persistent}}/{NAMESPACE}"
        routes.add("GET", lists, Right.LOOK, self.list_topics)
        routes.add("GET", f"{lists}/partitioned", Right.LOOK, self.list_partitioned)
        routes.add("GET", f"/admin/v2/namespaces/{NAMESPACE}/topics", Right.LOOK, self.list_of_namespace)
        for method, path, right, handler in (
            ("PUT", "", Right.TENANT_ADMIN, self.create),
            ("DELETE", "", Right.TENANT_ADMIN, self.delete),
            ("GET", "/partitions", Right.LOOK, self.partitions),
            ("PUT", "/partitions", Right.TENANT_ADMIN, self.create_partitioned),
            ("POST", "/partitions", Right.TENANT_ADMIN, self.grow),
            ("DELETE", "/partitions", Right.TENANT_ADMIN, self.delete_partitioned),
            ("GET", "/stats", Right.LOOK, self.stats),
            ("GET", "/partitioned-stats", Right.LOOK, self.partitioned_stats),
            ("GET", "/internalStats", Right.LOOK, self.internal_stats),
            ("GET", "/partitioned-internalStats", Right.LOOK, self.internal_stats),
            ("GET", "/lastMessageId", Right.CONSUME, self.last_message_id),
            ("GET", "/subscriptions", Right.CONSUME, self.subscriptions),
            ("POST", "/terminate", Right.TENANT_ADMIN, self.terminate),
            ("POST", "/terminate/partitions", Right.TENANT_ADMIN, self.terminate_partitions),
            ("PUT", "/unload", Right.TENANT_ADMIN, self.unload),
            ("DELETE", "/truncate", Right.TENANT_ADMIN, self.truncate),
            ("GET", "/compaction", Right.LOOK, self.compaction),
            ("PUT", "/compaction", Right.TENANT_ADMIN, self.compact),
            ("GET", "/offload", Right.LOOK, self.offload_status),
            ("PUT", "/offload", Right.TENANT_ADMIN, self.offload),
            ("POST", "/all_subscription/expireMessages/{seconds}", Right.CONSUME_ALL, self.expire_all),
        ):
            routes.add(method, _A_TOPIC + path, right, handler)
        for method, path, handler in (
            ("PUT", "", self.subscribe),
            ("DELETE", "", self.unsubscribe),
            ("POST", "/skip/{count}", self.skip),
            ("POST", "/skip_all", self.skip_all),
            ("POST", "/expireMessages/{seconds}", self.expire),
            ("POST", "/expireMessages", self.expire_through),
            ("POST", "/resetcursor/{time}", self.reset_to_time),
            ("POST", "/resetcursor", self.reset_to_id),
            ("GET", "/position/{place}", self.peek),
            ("GET", "/properties", self.properties),
            ("PUT", "/properties", self.set_properties),
        ):
            routes.add(method, _A_SUBSCRIPTION + path, Right.CONSUME, handler)
        routes.add("GET", f"/lookup/v2/topic/{TOPIC}", Right.LOOK, self.look_up)
        routes.add("GET", f"/lookup/v2/topic/{TOPIC}/bundle", Right.LOOK, self.bundle)
        for path, what in _NOT_HERE.items():
            routes.add("*", f"{_A_TOPIC}/{path}", Right.KNOWN, nothing_like(what))

    # --- lists ------------------------------------------------------------------------------------

    async def list_topics(self, request: web.Request) -> web.Response:
        """List the topics of a namespace and domain, partitions singly."""
        return found(await self._names(request, {request.match_info["domain"]}))

    async def list_of_namespace(self, request: web.Request) -> web.Response:
        """List the topics of a namespace, of the domain that `mode` names."""
        mode = request.query.get("mode", "PERSISTENT").upper()
        domains = {
            "PERSISTENT": {"persistent"},
            "NON_PERSISTENT": {"non-persistent"},
            "ALL": {"persistent", "non-persistent"},
        }.get(mode)
        if domains is None:
            raise Refusal(400, f"mode={mode[:100]}: give PERSISTENT, NON_PERSISTENT or ALL")
        return found(await self._names(request, domains))

    async def list_partitioned(self, request: web.Request) -> web.Response:
        """List the partitioned topics of a namespace and domain."""
        counts = await self._counts(request)
        domain = request.match_info["domain"]
        return found([name for name, count in counts.items() if count and _is_of(name, {domain})])

    async def _names(self, request: web.Request, domains: set[str]) -> list[str]:
        names = []
        for name, count in (await self._counts(request)).items():
            if _is_of(name, domains):
                names += [f"{name}-partition-{index}" for index in range(count)] if count else [name]
        return names

    async def _counts(self, request: web.Request) -> dict[str, int]:
        system = flag_of(request, "includeSystemTopic")
        return await self._call(self._topics.partitions, namespace_of(request), include_system_topic=system)

    # --- coming, growing, going -------------------------------------------------------------------

    async def create(self, request: web.Request) -> web.Response:
        """Create a topic without partitions."""
        if await body_of(request, dict, {}):
            raise Refusal(501, "pulsar_ray has no properties of topics: send none")
        await self._call(self._topics.create_topic, topic_of(request), mapped=EXISTS)
        return done()

    async def create_partitioned(self, request: web.Request) -> web.Response:
        """Create a topic with so many partitions."""
        body = await body_of(request, (int, dict))
        if isinstance(body, dict):
            body = body.get("partitions")
        if type(body) is not int or body < 1:
            raise Refusal(406, "Number of partitions should be more than 0")
        await self._call(self._topics.create_partitioned_topic, topic_of(request), body, mapped=EXISTS)
        return done()

    async def grow(self, request: web.Request) -> web.Response:
        """Let a partitioned topic have more partitions."""
        count = await body_of(request, int)
        topic = topic_of(request)
        mapped = (Mapped(NotAllowedError, 422), Mapped(InvalidConfiguration, 422))
        if not await self._call(self._topics.get_partitions, topic):
            raise Refusal(409, f"Topic {topic} is not the partitioned topic.")
        await self._call(self._topics.update_partitioned_topic, topic, count, mapped=mapped)
        return done()

    async def partitions(self, request: web.Request) -> web.Response:
        """Return the number of partitions, 0 of a topic without."""
        topic = topic_of(request)
        name = TopicName.parse(topic)
        whole = await self._count(name)
        is_there = name.partition_index < whole if name.is_partition else whole >= 0
        if not is_there and not flag_of(request, "checkAllowAutoCreation"):
            raise Refusal(404, f"Topic {topic} not found")
        return found({"partitions": 0 if name.is_partition else max(whole, 0), "deleted": False})

    async def _count(self, name: TopicName) -> int:
        """Return the number of partitions; -1 for a topic that is not there."""
        try:
            return await self._call(self._topics.get_partitions, name.partitioned_full)
        except TopicNotFound:
            return -1

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a topic without partitions."""
        topic, force = topic_of(request), flag_of(request, "force")
        if await self._call(self._topics.get_partitions, topic):
            raise Refusal(
                409,
                f"{topic} is a partitioned topic, instead of calling delete topic, please call "
                "delete-partitioned-topic.",
            )
        await self._release(topic)
        await self._call(self._topics.delete, topic, force, mapped=IN_USE)
        return done()

    async def delete_partitioned(self, request: web.Request) -> web.Response:
        """Delete a partitioned topic."""
        topic, force = topic_of(request), flag_of(request, "force")
        if not await self._call(self._topics.get_partitions, topic):
            raise Refusal(404, f"Partitioned Topic {topic} not found")
        await self._release(topic)
        await self._call(self._topics.delete, topic, force, mapped=IN_USE)
        return done()

    async def terminate(self, request: web.Request) -> web.Response:
        """End a topic, and return the id of its last message."""
        last = await self._call(self._topics.terminate_topic, topic_of(request), mapped=WRONG_KIND)
        return found(described_id(last))

    async def terminate_partitions(self, request: web.Request) -> web.Response:
        """End all partitions of a topic, and return their last ids."""
        topic = topic_of(request)
        ids = await self._call(self._topics.terminate_partitioned_topic, topic, mapped=WRONG_KIND)
        return found({str(number): described_id(last) for number, last in ids.items()})

    async def unload(self, request: web.Request) -> web.Response:
        """Have the processes that serve a topic start anew."""
        await self._call(self._topics.unload, topic_of(request))
        return done()

    async def truncate(self, request: web.Request) -> web.Response:
        """Delete all messages that are stored by now."""
        await self._call(self._topics.truncate, topic_of(request), mapped=WRONG_KIND)
        return done()

    async def compact(self, request: web.Request) -> web.Response:
        """Begin to compact a topic."""
        mapped = (Mapped(NotAllowedError, 409),)
        await self._call(self._topics.compact, topic_of(request), mapped=mapped)
        return done()

    async def compaction(self, request: web.Request) -> web.Response:
        """Say how the last compaction went, or how far this one is."""
        status = await self._call(self._topics.compaction_status, topic_of(request))
        return found({"status": status["status"], "lastError": status["last_error"]})

    async def offload(self, request: web.Request) -> web.Response:
        """Begin to leave what ends before a message to the object store."""
        topic = topic_of(request)
        first_kept = given_id(await body_of(request, (dict, str)), topic)
        mapped = (Mapped(NotAllowedError, 409),)
        await self._call(self._topics.offload, topic, first_kept, mapped=mapped)
        return done()

    async def offload_status(self, request: web.Request) -> web.Response:
        """Say how the last offload went, and where what is on the disk begins."""
        status = await self._call(self._topics.offload_status, topic_of(request))
        first = status.get("first_unoffloaded", [-1, -1])
        said = {"status": status["status"], "lastError": status["last_error"]}
        return found({**said, "firstUnoffloadedMessage": {"ledgerId": first[0], "entryId": first[1]}})

    # --- looking ----------------------------------------------------------------------------------

    async def stats(self, request: web.Request) -> web.Response:
        """Return the stats of a topic without partitions, or of one partition."""
        stats = await self._call(self._topics.stats, topic_of(request))
        if "partitions" in stats:
            raise Refusal(404, f"Topic {topic_of(request)} not found")
        return found(topic_stats(stats))

    async def partitioned_stats(self, request: web.Request) -> web.Response:
        """Return the sums of a partitioned topic, and each partition's own if asked for."""
        topic = topic_of(request)
        stats = await self._call(self._topics.stats, topic)
        partitions = stats.pop("partitions", None)
        if partitions is None:
            raise Refusal(404, f"Partitioned Topic {topic} not found")
        wanted = flag_of(request, "perPartition", default=True)
        described = {name: topic_stats(each) for name, each in partitions.items()} if wanted else {}
        metadata = {"partitions": len(partitions), "deleted": False}
        return found({**topic_stats(stats), "metadata": metadata, "partitions": described})

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Return ledgers and cursors."""
        stats = await self._call(self._topics.stats_internal, topic_of(request))
        if ("partitions" in stats) != request.path.endswith("partitioned-internalStats"):
            raise Refusal(404, f"Topic {topic_of(request)} not found")
        return found(stats)

    async def last_message_id(self, request: web.Request) -> web.Response:
        """Return the id of the last message."""
        topic = topic_of(request)
        mapped = (Mapped(OperationNotSupported, 404),)
        return found(described_id(await self._call(self._topics.get_last_message_id, topic, mapped=mapped)))

    async def subscriptions(self, request: web.Request) -> web.Response:
        """List the subscriptions of all partitions."""
        return found(await self._call(self._topics.subscriptions, topic_of(request)))

    async def look_up(self, request: web.Request) -> web.Response:
        """Return where a topic is served: here, whoever asks by HTTP."""
        return found(
            {"brokerUrl": "", "httpUrl": self._url(), "nativeUrl": "", "brokerUrlSsl": "", "httpUrlTls": ""}
        )

    async def bundle(self, request: web.Request) -> web.Response:
        """Return the bundle of a topic: there is one for all."""
        return web.Response(text="0x00000000_0xffffffff", content_type="text/plain")

    # --- subscriptions ----------------------------------------------------------------------------

    async def subscribe(self, request: web.Request) -> web.Response:
        """Create a durable subscription, at the latest message unless the body names one."""
        body = await body_of(request, (dict, str), "latest")
        topic, properties = topic_of(request), None
        if isinstance(body, dict):
            properties = body.get("properties") or None
        position = given_id(body, topic)
        start = {MessageId.earliest: "earliest", MessageId.latest: "latest"}.get(position, position)
        await self._call(
            self._topics.create_subscription,
            topic,
            request.match_info["subscription"],
            start,
            properties=properties,
            mapped=EXISTS,
        )
        return done()

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Delete a subscription with its backlog."""
        force = flag_of(request, "force")
        await self._on_subscription(request, self._topics.unsubscribe, force, mapped=IN_USE)
        return done()

    async def skip(self, request: web.Request) -> web.Response:
        """Acknowledge the first so many unacknowledged entries."""
        count = number_of("count", request.match_info["count"], 1)
        await self._on_subscription(request, self._topics.skip, count, mapped=WRONG_KIND)
        return done()

    async def skip_all(self, request: web.Request) -> web.Response:
        """Acknowledge everything stored by now."""
        await self._on_subscription(request, self._topics.skip_all)
        return done()

    async def expire(self, request: web.Request) -> web.Response:
        """Acknowledge what is older than so many seconds."""
        seconds = number_of("seconds", request.match_info["seconds"])
        await self._on_subscription(request, self._topics.expire_messages, seconds)
        return done()

    async def expire_through(self, request: web.Request) -> web.Response:
        """Acknowledge everything up to a message; that one is left if it is `excluded`."""
        body, topic = await body_of(request, dict), topic_of(request)
        position = given_id(body.get("messageId", body), topic)
        through = self._topics.expire_messages_through
        await self._on_subscription(request, through, position, _is_excluded(body), mapped=WRONG_KIND)
        return done()

    async def expire_all(self, request: web.Request) -> web.Response:
        """Acknowledge what is older than so many seconds, for all subscriptions."""
        seconds = number_of("seconds", request.match_info["seconds"])
        await self._call(self._topics.expire_messages_all_subscriptions, topic_of(request), seconds)
        return done()

    async def reset_to_time(self, request: web.Request) -> web.Response:
        """Let a subscription begin at a publish time."""
        time_ms = number_of("time", request.match_info["time"])
        await self._on_subscription(request, self._topics.reset_cursor, time_ms)
        return done()

    async def reset_to_id(self, request: web.Request) -> web.Response:
        """Let a subscription begin at a message, or behind it if that is `excluded`."""
        body, topic = await body_of(request, (dict, str)), topic_of(request)
        position = given_id(body, topic)
        is_excluded = isinstance(body, dict) and _is_excluded(body)
        if is_excluded and position not in (MessageId.earliest, MessageId.latest):
            # An entry comes whole, so that nothing but the whole of it can be left out.
            position = MessageId(position.partition(), position.ledger_id(), position.entry_id() + 1)
        await self._on_subscription(request, self._topics.reset_cursor, position, mapped=WRONG_KIND)
        return done()

    async def properties(self, request: web.Request) -> web.Response:
        """Return the properties of a subscription."""
        stats = await self._call(self._topics.stats, topic_of(request))
        name = request.match_info["subscription"]
        known = stats["subscriptions"].get(name)
        if known is None:
            raise Refusal(404, f"Subscription {name} not found")
        return found(known.get("subscriptionProperties", {}))

    async def set_properties(self, request: web.Request) -> web.Response:
        """Replace the properties of a subscription."""
        body = await body_of(request, dict)
        await self._on_subscription(request, self._topics.update_subscription_properties, body)
        return done()

    async def peek(self, request: web.Request) -> web.Response:
        """Return the n-th unacknowledged message: its payload, and what else it has in headers."""
        place = number_of("place", request.match_info["place"], 1)
        message = await self._on_subscription(request, self._topics.peek_message, place, mapped=WRONG_KIND)
        if message is None:
            raise Refusal(404, "Message not found")
        return message_answer(message)

    async def _on_subscription(
        self, request: web.Request, call: Any, *arguments: Any, mapped: tuple[Mapped, ...] = ()
    ) -> Any:
        name = request.match_info["subscription"]
        return await self._call(call, topic_of(request), name, *arguments, mapped=mapped)


def _is_excluded(body: dict[str, Any]) -> bool:
    excluded = body.get("excluded", False)
    if not isinstance(excluded, bool):
        raise Refusal(400, f"excluded={str(excluded)[:100]}: send true or false")
    return excluded


def _is_of(topic: str, domains: set[str]) -> bool:
    return topic.partition("://")[0] in domains
