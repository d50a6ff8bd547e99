"""Lets idle actors of a stub cluster leave, and signals clients when they are back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from contextlib import suppress

from pulsar_ray.broker.catalog.catalog import PartitionRow
from pulsar_ray.broker.catalog.parked_consumers import ParkedConsumers
from pulsar_ray.broker.catalog.topic_registry import TopicRegistry
from pulsar_ray.broker.catalog.wanted_topics import WantedTopics
from pulsar_ray.broker.serving.sleeper import Retired
from pulsar_ray.clock import Clock
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.topic_name import TopicName
from pulsar_ray.testing.stub_actor import StubActor
from pulsar_ray.transport.actor_names import parse_dispatcher_name, partition_name, topic_of_actor

RESTLESS_PAUSE_S = 0.01
TELL_S = 20.0
START_S = 5.0
SIGNAL_S = 5.0
"""Time in which parked clients attach after a signal."""


class StubPassivation:
    """As the controller's Passivation. `lock` is held around all that starts or ends `actors`.

    `start_dispatcher` starts one by its address.
    """

    def __init__(
        self,
        actors: MutableMapping[str, StubActor],
        lock: threading.RLock,
        topics: TopicRegistry,
        clock: Clock,
        start_dispatcher: Callable[[str], None],
    ) -> None:
        self._actors = actors
        self._lock = lock
        self._topics = topics
        self._clock = clock
        self._wanted = WantedTopics(clock.monotonic_ms())
        self._start_partition: Callable[[PartitionRow], StubActor]
        self._delete_topic: Callable[[str, bool], None]
        self._start_dispatcher = start_dispatcher
        self.consumers = ParkedConsumers()
        self._changed = threading.Condition(lock)
        self._calls: dict[str, dict[str, bool]] = {}
        """By client the partitions that it waits for, and whether they have been awake since."""
        self._parked: set[str] = set()
        """Dispatchers that left while clients were attached, and have not been started since."""
        self._signalled_s: dict[str, float] = {}
        """When the parked clients of each partition were signalled last."""
        self._gone_s: dict[str, float] = {}
        """When a subscription of each partition was removed last."""
        self._restless: threading.Thread | None = None
        self._has_ended = False

    # --- leaving --------------------------------------------------------------------------------------------

    def put_to_sleep(self, topic: str, *, with_clients: bool = False) -> bool:
        """Let the actors of a partition leave that may; True if the partition's own did.

        Those of subscriptions leave first. They start again when they are asked for.
        """
        partition = TopicName.parse(topic).full
        own = partition_name(partition)
        with self._lock:
            if own not in self._actors or self._is_awaited(partition):
                return False
            actor = self._actors[own]
            before = actor.activity()
            dispatchers = [each for each in self._actors if each != own and topic_of_actor(each) == partition]
            have_left = [self._slept(each, with_clients=with_clients) for each in dispatchers]
            # Messages published since the first of them left are for consumers that are parked by now.
            is_idle = before is not None and actor.activity() == before
            if all(have_left) and is_idle and self._slept(own, with_clients=with_clients):
                return True
            if any(have_left):
                self.started(partition)
            return False

    def remove_by(
        self, start_partition: Callable[[PartitionRow], StubActor], delete_topic: Callable[[str, bool], None]
    ) -> None:
        """See Passivation.remove_by; partitions are started for their farewells."""
        self._start_partition = start_partition
        self._delete_topic = delete_topic

    def asked(self, partitions: Sequence[str]) -> None:
        """Note that somebody has asked for these partitions."""
        self._wanted.asked(partitions, self._clock.monotonic_ms())

    def remove_unused(self, partition: str) -> bool:
        """As Passivation.remove_unused, for the topic of a partition."""
        with self._lock:
            row = None if self._has_ended else self._topics.partition(TopicName.parse(partition))
            if row is None:
                return False
            rows = self._topics.rows_of(TopicName.parse(row.topic))
            if any(self._is_wanted(each.name) for each in rows):
                return False
            for each in rows:
                self._start_partition(each).serving(START_S)
            if not all(self._left_unused(each.name) for each in rows):
                return False
            self._delete_topic(row.topic, False)
            return True

    def _is_wanted(self, partition: str) -> bool:
        return self._wanted.is_wanted(partition, self._clock.monotonic_ms()) or self.count(partition) > 0

    def _left_unused(self, partition: str) -> bool:
        """Let a partition leave; returns whether it was unused."""
        own = partition_name(partition)
        dispatchers = [each for each in self._actors if each != own and topic_of_actor(each) == partition]
        if not all(self._retired(each, with_clients=False) for each in dispatchers):
            return False
        retired = self._retired(own, with_clients=False)
        return retired is not None and retired.is_unused

    def _is_awaited(self, partition: str) -> bool:
        """Whether parked clients were signalled just now: they have to see first what was published."""
        self._parked.difference_update(self._actors)
        away = {each for each in self._parked if topic_of_actor(each) == partition}
        if away and time.monotonic() - self._signalled_s[partition] < SIGNAL_S:
            return True
        self._parked -= away
        return False

    def _slept(self, address: str, *, with_clients: bool) -> bool:
        return self._retired(address, with_clients=with_clients) is not None

    def _retired(self, address: str, *, with_clients: bool) -> Retired | None:
        actor = self._actors.get(address)
        if actor is None or actor.is_dead:
            return None
        has_clients = actor.host.clients > 0
        retired = actor.retire(with_clients=with_clients)
        if retired is None:
            return None
        del self._actors[address]
        if has_clients:
            self._parked.add(address)
        return retired

    def keep_putting_to_sleep(self, *, with_clients: bool) -> None:
        """Let every actor leave from now on, as soon as nothing is under way."""

        def run() -> None:
            while not self._has_ended:
                for address in list(self._actors):
                    if parse_dispatcher_name(address) is None:
                        self.put_to_sleep(topic_of_actor(address), with_clients=with_clients)
                time.sleep(RESTLESS_PAUSE_S)

        self._restless = threading.Thread(target=run, name="restless", daemon=True)
        self._restless.start()

    # --- parked clients -------------------------------------------------------------------------------------

    def started(self, partition: str) -> None:
        """Signal the parked clients of a partition that starts. Called with the lock held."""
        self._signalled_s[partition] = time.monotonic()
        for call in self._calls.values():
            if partition in call:
                # It may sleep again before the thread of that call runs.
                call[partition] = True
        self._changed.notify_all()

    def subscription_gone(self, partition: str) -> None:
        """As Passivation.subscription_gone."""
        with self._lock:
            self._gone_s[partition] = time.monotonic()
            self.started(partition)

    def deleted(self) -> None:
        """Signal the parked clients of topics that are no more."""
        with self._lock:
            self._changed.notify_all()

    def await_wake(
        self, client_id: str, parked: dict[str, list[tuple[int, bool]]], timeout_s: float
    ) -> list[str]:
        """As ParkedClients.await_wake; with the lock held.

        A newer call of the same client ends this one.
        """
        call = self._calls[client_id] = dict.fromkeys(map(topic_of_actor, parked), False)
        self._changed.notify_all()
        awake: list[str] = []

        def has_answer() -> bool:
            awake[:] = [each for each in parked if call[topic_of_actor(each)] or self._is_awake(each)]
            return bool(awake) or self._has_ended or self._calls.get(client_id) is not call

        self.consumers.waits(client_id, parked)
        self._elect(self.consumers.to_elect(parked))
        self._changed.wait_for(has_answer, timeout_s)
        if self._calls.get(client_id) is call:
            del self._calls[client_id]
            self.consumers.waits_no_more(client_id)
        return awake

    def count(self, partition: str) -> int:
        """See ParkedClients.count; with the lock held."""
        return sum(partition in partitions for partitions in self._calls.values())

    def consumer_left(self, dispatcher: str, incarnation: int, calls_election: bool) -> None:
        """As Passivation.consumer_left; with the lock held."""
        running = self._actors.get(dispatcher)
        if running is None or running.is_dead:
            self.consumers.left(dispatcher, incarnation, calls_election=calls_election)
            self._elect(self.consumers.to_elect([dispatcher]))
        else:
            threading.Thread(target=self._tell_left, args=(running, incarnation), daemon=True).start()

    def _tell_left(self, dispatcher: StubActor, incarnation: int) -> None:
        with suppress(PulsarException):
            dispatcher.serving(TELL_S)
            word = dispatcher.submit(lambda: dispatcher.call("consumer_left", {"incarnation": incarnation}))
            dispatcher.result(word, TELL_S)

    def _elect(self, dispatchers: list[str]) -> None:
        for dispatcher in dispatchers:
            self._start_dispatcher(dispatcher)

    def _is_awake(self, dispatcher: str) -> bool:
        topic = topic_of_actor(dispatcher)
        has_news = time.monotonic() - self._gone_s.get(topic, -SIGNAL_S) < SIGNAL_S
        is_running = partition_name(topic) in self._actors
        return has_news or is_running or not self._topics.partition(TopicName.parse(topic))

    def end(self) -> None:
        """Put nobody to sleep any more, and keep no client waiting."""
        with self._lock:
            self._has_ended = True
            self._changed.notify_all()
        if self._restless is not None:
            self._restless.join()
