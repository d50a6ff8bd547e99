"""`Admin.topics`: what can be done to topics."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pulsar_ray.admin.ending_calls import EndingCalls, each_of
from pulsar_ray.admin.moving import Moving, PartitionMove
from pulsar_ray.admin.permissions import Permissions
from pulsar_ray.admin.policies import Policies
from pulsar_ray.admin.redrive import Redrive
from pulsar_ray.admin.topic_calls import Broker, TopicCalls
from pulsar_ray.admin.topic_growth import TopicGrowth, check_partitions
from pulsar_ray.admin.topic_inspection import TopicInspection
from pulsar_ray.admin.topic_subscriptions import TopicSubscriptions
from pulsar_ray.client.client import Client
from pulsar_ray.client.options.checks import check_flag, check_text
from pulsar_ray.client.received.message import Message
from pulsar_ray.errors import InvalidTopicName, NotAllowedError, PulsarException, TopicNotFound
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.model.policies import TOPIC
from pulsar_ray.model.registrations import STRICT_PROPERTY
from pulsar_ray.model.topic_name import TopicName, is_namespace

_BY_URGENCY = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")


class Topics:
    """Topics of a broker. Names may be short: `t` is persistent://public/default/t.

    Each change of a durable subscription returns when its effect is durable, and may be repeated. The
    work is done by the subscription's dispatcher, which is started if it sleeps. On a partitioned topic it is
    done on every partition that has the subscription; name one partition (`<topic>-partition-<number>`) to
    mean that one only. All raise TopicNotFound, SubscriptionNotFound, and ValueError for arguments that mean
    nothing.
    """

    def __init__(self, broker: Broker, new_client: Callable[[], Client]) -> None:
        self._calls = TopicCalls(broker)
        self._moving = Moving(broker)
        self._growth = TopicGrowth(self._calls)
        self._inspection = TopicInspection(self._calls)
        self._subscriptions = TopicSubscriptions(self._calls)
        self._ending = EndingCalls(self._calls)
        self._redrive = Redrive(self._calls, self._inspection, self._subscriptions, new_client)
        self.policies = Policies(broker, TOPIC)
        """They override the namespace's policies and the broker's settings for one topic."""
        self.permissions = Permissions(broker, TOPIC)
        """The roles that may produce and consume, besides those of the namespace."""

    def create_topic(self, topic: str) -> None:
        """Create a topic without partitions. Raises NotAllowedError if it exists, InvalidTopicName."""
        self._create(TopicName.parse(topic), 0)

    def create_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with so many partitions.

        Raises NotAllowedError if it exists, InvalidTopicName, InvalidConfiguration unless it is in 1..10000.
        """
        check_partitions(partitions)
        self._create(TopicName.parse(topic), partitions)

    def _create(self, name: TopicName, partitions: int) -> None:
        def is_there(refused: PulsarException) -> bool:
            namespace = f"{name.tenant}/{name.namespace}"
            return isinstance(refused, NotAllowedError) and (
                self.partitions(namespace).get(name.full) == partitions
            )

        self._calls.ask_controller("create_topic", name.full, partitions, was_done=is_there)

    def update_partitioned_topic(self, topic: str, partitions: int) -> None:
        """Let a partitioned topic have so many partitions, more than it has now.

        Durable when it returns. Every durable subscription that all present partitions have (but for those
        that are away) is created on the new ones, from their beginning, before anybody can publish to them.
        Connected producers and consumers find them within `auto_update_partitions_interval_seconds`. From
        then on a key may belong to another partition, so that its order holds before and after, and not
        across (Pulsar's `update-partitioned-topic`). The next attempt finishes the work of one that failed.

        Raises TopicNotFound, NotAllowedError unless the topic is partitioned and would grow,
        InvalidConfiguration unless the number is in 1..10000.
        """
        self._growth.grow(topic, partitions)

    def delete(self, topic: str, force: bool = False) -> None:
        """Delete a topic with all its partitions, subscriptions and messages.

        Raises TopicNotFound, and NotAllowedError while producers or consumers are connected, unless forced.
        """
        check_flag("force", force)
        full = TopicName.parse(topic).full
        self._calls.ask_controller(
            "delete_topic", full, force, was_done=lambda refused: isinstance(refused, TopicNotFound)
        )

    def delete_many(self, topics: Iterable[str], force: bool = False) -> None:
        """Delete several topics, as `delete`.

        If some cannot be deleted the others are, and the first error is raised; its text names all of them.
        """
        if isinstance(topics, str):
            raise ValueError("topics is a str: give a list of names")
        each_of(topics, lambda topic: self.delete(topic, force))

    def terminate_topic(self, topic: str) -> MessageId:
        """End a topic, durably and for good; returns the id of its last message.

        Producers get TopicTerminated, those that are connected too. Consumers get all that is
        stored. May be repeated. Raises NotAllowedError for a partitioned topic, as Pulsar does, but not for
        one of its partitions; for a non-persistent one; and for system topics.
        """
        return self._ending.terminate(topic)

    def terminate_partitioned_topic(self, topic: str) -> dict[int, MessageId]:
        """End all partitions of a topic, as `terminate_topic`; returns the last id of each."""
        return self._ending.terminate_partitions(topic)

    def truncate(self, topic: str) -> None:
        """Delete all messages that are stored by now, and give their space back.

        Retention keeps none of them. They are acknowledged for all subscriptions, which stay, as does the
        topic. Messages that a lease of a reader in bulk covers are deleted once that ends. Raises
        NotAllowedError for non-persistent and system topics.
        """
        self._ending.truncate(topic)

    def compact(self, topic: str) -> None:
        """Begin to compact a topic, to the latest message of each key.

        Those who read with `is_read_compacted` get that once it has ended. Everything stored by now is taken
        in; `compaction_status` says how it goes. Of a partitioned topic all partitions are compacted. Raises
        NotAllowedError while a compaction runs, and for non-persistent and system topics.
        """
        self._ending.compact(topic)

    def compaction_status(self, topic: str) -> dict[str, Any]:
        """How the last compaction of a topic stands, since its partitions started.

        `status` is NOT_RUN, RUNNING, SUCCESS or ERROR, `last_error` the reason of the latter, `progress` the
        share that is done. Of a partitioned topic the worst of its partitions, each of which is listed under
        `partitions`.
        """
        found = self._ending.compaction_status(topic)
        if list(found) == [TopicName.parse(topic).full]:
            return next(iter(found.values()))
        worst = min(found.values(), key=lambda each: _BY_URGENCY.index(each["status"]))
        return {
            **worst,
            "progress": min(each["progress"] for each in found.values()),
            "partitions": found,
        }

    def offload(self, topic: str, message_id: MessageId | None = None) -> None:
        """Begin to leave closed segments to the object store, which frees the disk.

        All that end before a message, or all; `offload_status` says how it goes. They are read from there,
        through a cache of the node. Raises NotAllowedError for a topic that is not in an object store, while
        another offload is under way, and for non-persistent and system topics.
        """
        self._ending.offload(topic, message_id)

    def fetch_back(self, topic: str) -> None:
        """Begin to bring offloaded segments back, as far as the disk has room.

        They stay there too. Where policies want them to leave the disk, they go again. `offload_status` says
        how it stands; raises as `offload`.
        """
        self._ending.fetch_back(topic)

    def offload_status(self, topic: str) -> dict[str, Any]:
        """How the last offload of a topic stands, since its partitions started.

        `status` is NOT_RUN, RUNNING, SUCCESS or ERROR, `last_error` the reason of the latter;
        `offloaded_segments` and `offloaded_bytes` are only in the object store, `local_bytes` are here,
        from `first_unoffloaded` on. Of a partitioned topic the sums and the worst of its partitions, each of
        which is listed under `partitions`.
        """
        found = self._ending.offload_status(topic)
        if list(found) == [TopicName.parse(topic).full]:
            return next(iter(found.values()))
        worst = min(found.values(), key=lambda each: _BY_URGENCY.index(each["status"]))
        summed = ("offloaded_segments", "offloaded_bytes", "local_bytes")
        return {
            "status": worst["status"],
            "last_error": worst["last_error"],
            **{name: sum(each[name] for each in found.values()) for name in summed},
            "partitions": found,
        }

    def unload(self, topic: str) -> None:
        """Have the processes that serve a topic start anew from the disk, those that run.

        It is what a crash of them is: producers and consumers are connected again by themselves, nothing that
        was confirmed is lost, and the partition begins another ledger. For a topic that stands still. Raises
        WrongNode, with nothing done, if a partition is away: those that are there are unloaded by their own
        names.
        """
        self._calls.ask_controller("unload_topic", TopicName.parse(topic).full)

    def move(
        self,
        topic: str,
        node: str,
        *,
        wait: bool = True,
        shown: Callable[[Sequence[PartitionMove]], None] = lambda _: None,
    ) -> Sequence[PartitionMove]:
        """Move a topic, or one of its partitions, to the store of another node.

        `node` is its host, or how the id of its store, or Ray's of the node, begins. The log is copied
        while the partition serves; for the last part publishers and consumers wait, under a second as a rule,
        and go on by themselves. Messages, their ids, subscriptions and what they have acknowledged stay as
        they are. Returns how the move of each partition ended: one that was broken off has stayed where it
        was, with everything, and has a `reason`. None is returned for one that was there. `shown` is called
        now and then with those under way. Without `wait` it returns the moves as they begin, and
        `brokers.moves` says how they go on. Raises TopicNotFound, and NotAllowedError for what is not stored,
        moves elsewhere already, or where there is no such store.
        """
        return self._moving.move(topic, node, shown, waits=wait)

    def list(self, namespace: str = "public/default", *, include_system_topic: bool = False) -> list[str]:
        """Full names of the topics of a namespace, sorted; a partitioned topic counts once.

        Those that the broker keeps for itself are listed only if asked for. Raises TopicNotFound if the
        namespace does not exist.
        """
        return sorted(self.partitions(namespace, include_system_topic=include_system_topic))

    def partitions(
        self, namespace: str = "public/default", *, include_system_topic: bool = False
    ) -> dict[str, int]:
        """The number of partitions of each topic of a namespace, as `list`.

        0 for one that is not partitioned. Raises TopicNotFound if the namespace does not exist.
        """
        check_flag("include_system_topic", include_system_topic)
        check_text("namespace", namespace)
        if not is_namespace(namespace):
            raise InvalidTopicName(f"{namespace!r} is not a namespace: use 'tenant/namespace'")
        rows = self._calls.ask_controller("list_topics", namespace, include_system_topic)
        return {name: count for name, count in rows}  # noqa: C416

    def get_partitions(self, topic: str) -> int:
        """The number of partitions; 0 for a topic that is not partitioned. Raises TopicNotFound."""
        count: int = self._calls.ask_controller("partition_count", TopicName.parse(topic).full)
        return count

    # ---- looking at topics, which starts no dispatcher and changes nothing

    def stats(self, topic: str, *, subscriptions: bool = True) -> dict[str, Any]:
        """Counters, rates, producers, subscriptions and consumers, with Pulsar's field names.

        Of a partitioned topic the sums, and each partition's own under `partitions`. Counters start at 0 with
        the actor that counts; rates are of the last ten seconds; backlogs count entries. Cheap enough to ask
        every second: one call to each running actor, no disk. Without `subscriptions` only the partitions
        are asked. A partition that is away, or does not answer, has the reason as `refused`, zeros and no
        subscriptions, none of which is known; that it is `away` is said as well. The sums are of the others
        then, and say `refused` too. Raises TopicNotFound.
        """
        check_flag("subscriptions", subscriptions)
        return self._inspection.stats(topic, subscriptions=subscriptions)

    def partitioned_stats(self, topic: str) -> dict[str, Any]:
        """`stats` of a partitioned topic. Raises NotAllowedError for one that is not."""
        stats = self.stats(topic)
        if "partitions" not in stats:
            raise NotAllowedError(f"{topic} is not a partitioned topic: use stats()")
        return stats

    def stats_internal(self, topic: str) -> dict[str, Any]:
        """Ledgers and cursors, as Pulsar's stats-internal; of a partitioned topic under `partitions`.

        Without those that are away. Raises TopicNotFound, ServiceUnitNotReady while a partition cannot serve.
        """
        return self._inspection.stats_internal(topic)

    def subscriptions(self, topic: str) -> builtins.list[str]:
        """The names of all subscriptions, sorted: durable ones, and others while they are connected.

        Raises TopicNotFound, WrongNode if all partitions are away.
        """
        return self._inspection.subscriptions(topic)

    def get_last_message_id(self, topic: str) -> MessageId:
        """The id of the newest message; of a batch its last message's.

        (-1,-1,-1,-1) of an empty topic.

        Raises OperationNotSupported for a partitioned topic: name one of its partitions.
        """
        return self._inspection.last_message_id(topic)

    def forget_producers(self, topic: str, prefix: str) -> builtins.list[str]:
        """Make deduplication forget the producers whose names begin with `prefix`.

        Returns their names. Their messages are stored again if they are sent again. Raises TopicNotFound,
        WrongNode if a partition is away, ValueError for an empty prefix.
        """
        check_text("prefix", prefix)
        if not prefix:
            raise ValueError("prefix is empty: give the beginning of the names to forget")
        names: set[str] = set()
        for route in self._calls.serving_routes(topic):
            names.update(self._calls.ask_partition(route, "forget_producers", prefix=prefix))
        return sorted(names)

    def producer_sequence_ids(self, topic: str, prefix: str = "") -> dict[str, dict[str, int]]:
        """Return the highest sequence id that deduplication knows of each producer, for each partition.

        The outer names are those of the partitions (the topic's own if it has none), the inner ones those of
        the producers that begin with `prefix`. An id is durable, and -1 before the first one. Empty where
        deduplication is off. Raises TopicNotFound, WrongNode if a partition is away.
        """
        check_text("prefix", prefix)
        return {
            route.topic: self._calls.ask_partition(route, "producer_sequence_ids", prefix=prefix)
            for route in self._calls.all_routes(topic)
        }

    # ---- durable subscriptions

    def create_subscription(
        self,
        topic: str,
        subscription: str,
        position: MessageId | str = "earliest",
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a durable subscription.

        From now on the topic keeps for it the messages that it has not acknowledged.

        `position` is "earliest", "latest", or the id of the first message it gets (a batch comes whole). No
        dispatcher is started for it. On a partitioned topic it is created on each partition, and an id is
        refused with OperationNotSupported. Raises NotAllowedError if it exists, InvalidConfiguration for an
        empty name and for an id of another topic.
        """
        self._subscriptions.create(topic, subscription, position, properties=properties)

    def update_subscription_properties(
        self, topic: str, subscription: str, properties: Mapping[str, str]
    ) -> None:
        """Replace the properties of a durable subscription, on every partition that has it.

        They are in `stats` as `subscriptionProperties`. Raises InvalidConfiguration for a value that the
        broker cannot heed.
        """
        self._subscriptions.set_properties(topic, subscription, properties, replace=True)

    def set_delayed_delivery_strict(self, topic: str, subscription: str, strict: bool | None) -> None:
        """Say whether delayed messages of one subscription may come up to a tick early.

        True: never; False: they may; None: as the topic's policy `delayed_delivery` says. It holds at once,
        also for messages that wait already. Kept as the subscription's property `delayed-delivery-strict`.
        """
        if strict is not None:
            check_flag("strict", strict)
        text = "" if strict is None else str(strict).lower()
        self._subscriptions.set_properties(topic, subscription, {STRICT_PROPERTY: text}, replace=False)

    def unsubscribe(self, topic: str, subscription: str, force: bool = False) -> None:
        """Delete a subscription with its backlog.

        Raises NotAllowedError while consumers are connected to any partition, sleeping ones included, and
        then has changed nothing; unless forced: then their next call raises SubscriptionNotFound, and they do
        not bring the subscription back.
        """
        self._subscriptions.delete(topic, subscription, force)

    def skip(self, topic: str, subscription: str, count: int) -> int:
        """Acknowledge the first so many unacknowledged entries (a batch is one).

        Returns how many there were.

        Consumers keep those that they hold. Raises OperationNotSupported for a partitioned topic, which has
        no order of its own: name one of its partitions.
        """
        return self._subscriptions.skip(topic, subscription, count)

    def skip_all(self, topic: str, subscription: str) -> int:
        """Acknowledge everything stored by now; returns how many entries that were.

        Consumers keep what they hold.
        """
        return self._subscriptions.skip_all(topic, subscription)

    def expire_messages(self, topic: str, subscription: str, older_than_seconds: float) -> int:
        """Acknowledge messages published more than so many seconds ago.

        Returns how many entries that were.

        It goes up to the first message that is younger. Consumers keep what they hold.
        """
        return self._subscriptions.expire(topic, subscription, older_than_seconds)

    def expire_messages_through(
        self, topic: str, subscription: str, message_id: MessageId, excluded: bool = False
    ) -> int:
        """Acknowledge messages up to one, but not that one if it is `excluded`.

        Returns how many entries that were. A batch goes whole; an id behind the end is the end. Consumers
        keep what they hold. Raises as `reset_cursor`.
        """
        check_flag("excluded", excluded)
        return self._subscriptions.expire_through(topic, subscription, message_id, is_excluded=excluded)

    def expire_messages_all_subscriptions(self, topic: str, older_than_seconds: float) -> dict[str, int]:
        """`expire_messages` for every durable subscription; returns the expired entries of each.

        Dispatchers that sleep with nothing left to deliver are not started.
        """
        return self._subscriptions.expire_all(topic, older_than_seconds)

    def reset_cursor(self, topic: str, subscription: str, to: MessageId | int | str) -> None:
        """Have a subscription start over at a message, at a time, or at an end.

        `to` is the id of the first message it then gets (a batch comes whole; an id beyond the end is the
        end), a publish time in ms since 1970, "earliest" or "latest". Connected consumers drop what they have
        queued and go on there. An id concerns its own partition only. Raises InvalidConfiguration for an id
        of another topic, OperationNotSupported for one that does not say which partition it is of.
        """
        self._subscriptions.reset_cursor(topic, subscription, to)

    def peek_messages(self, topic: str, subscription: str, count: int = 1) -> builtins.list[Message]:
        """The first so many messages that are not acknowledged, whoever holds them; nothing moves.

        Fewer if there are no more. Values of a topic with a schema are dicts and the like, by their writers'
        versions. Those of a partitioned topic come partition by partition. Raises
        CorruptData naming the place of an entry that cannot be read.
        """
        return self._subscriptions.peek(topic, subscription, count)

    def peek_message(self, topic: str, subscription: str, place: int = 1) -> Message | None:
        """The message at a place, counted from 1, of those that `peek_messages` returns.

        None if there are fewer.
        """
        return self._subscriptions.peek_at(topic, subscription, place)

    def redrive(
        self,
        topic: str,
        to: str | None = None,
        *,
        subscription: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        progress: Callable[[int], None] = lambda _: None,
    ) -> dict[str, int]:
        """Send messages of a dead letter topic back; returns how many went to each topic.

        Each goes to the topic in its property REAL_TOPIC, or all go `to` one. Those whose property is
        missing, no topic's name, or `topic` itself stay and are counted under "". A message is
        acknowledged for `subscription` (by default the only one) when its copy is durable, and the copy is as
        the message was before it became a letter. Only messages that are stored by now, of those
        that have a target at most `limit`. With `dry_run` they are counted, and nothing moves; no target is
        asked whether it takes them. Messages that wait for their time or are held by consumers are counted by
        a dry run, and do not move.

        Raises SubscriptionNotFound; InvalidConfiguration if there are several subscriptions, or messages
        would go to where they are; TopicNotFound for a target that does not exist, and NotAllowedError for
        one that would keep nothing; ConsumerBusy if another consumer is connected that is not Shared. The
        error of a target comes when messages for all others went, and tells how many. Copies that were sent
        stay sent. `progress` is called with the number of messages each time that some have moved.
        """
        return self._redrive.run(topic, to, subscription, limit, dry_run=dry_run, progress=progress)

    # ---- questions to dispatchers

    def why_blocked(self, topic: str, subscription: str) -> dict[str, Any]:
        """Why messages of a durable subscription are not delivered just now.

        `reason` is a sentence. `hashes` are those of a Key_Shared subscription whose messages wait: `hash`,
        its `owner`, `heldBy` (the consumers that still have unacknowledged messages of it: `consumerName`,
        `unackMsgs`, `messageIds` as [ledger, entry, batch index or -1]), `waitingMessages`, `firstWaiting`,
        `blockedMs`. `consumers` are those that take nothing, with a `reason` each. `delayedMessages` wait for
        their time; the next is due in `delayedDueInMs`. `nackedMessages` wait at consumers for the delay of
        their negative acknowledgment; the first comes again in `nackedDueInMs`. At most 100 hashes, and
        100 ids of each consumer, are listed. (PIP-379 leaves such a call to a later one.)
        """
        return self._of_partitions(topic, subscription, "why_blocked")

    def why_blocked_awake(self, topic: str, subscription: str) -> builtins.list[dict[str, Any]]:
        """`why_blocked` of each partition whose dispatcher runs; none is started or kept awake.

        For watching: it may be asked every second.
        """
        check_text("subscription", subscription)
        answers = (
            self._calls.ask_running(route, subscription, "why_blocked")
            for route in self._calls.all_routes(topic)
            if not route.away
        )
        return [answer for answer in answers if answer is not None]

    def key_owner(self, topic: str, subscription: str, key: str) -> dict[str, Any]:
        """The `hash` of a key on a Key_Shared subscription, and its `owner`'s name.

        Of a key or an ordering key; the name is None if nobody owns it.

        `drainedBy` names consumers that still have unacknowledged messages of a hash that has moved. Raises
        NotAllowedError if consumers of another type are connected.
        """
        check_text("key", key)
        return self._of_partitions(topic, subscription, "key_owner", key=key)

    def _of_partitions(self, topic: str, subscription: str, call: str, **arguments: Any) -> dict[str, Any]:
        check_text("subscription", subscription)
        found: dict[str, dict[str, Any]] = {
            route.topic: self._calls.ask_dispatcher(route, subscription, call, **arguments)
            for route in self._calls.routes_there(topic)
        }
        return found.get(TopicName.parse(topic).full) or {"partitions": found}
