"""The record of a scene beside what its clients were told: its log, dead letters, and leftovers."""

from __future__ import annotations

from contextlib import suppress

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.errors import PulsarException, Timeout
from tests.faults.history.operations import (
    DeclaredSubscription,
    DeclaredTopic,
    Remains,
    Stored,
    note,
)
from tests.faults.journal import Journal, id_of
from tests.torture.administering import changed_subjects, note_values
from tests.torture.clients import Consuming, Notes, always_fails
from tests.torture.leftovers import Subscriber
from tests.torture.reads import stored_of
from tests.torture.scenes import Scene

QUIET_MS = 400


class SceneRecord:
    """The topic of a scene as nobody sees it who takes part; `stored` is its log once it was read."""

    def __init__(self, scene: Scene, notes: Notes, journal: Journal) -> None:
        self.scene = scene
        self.notes = notes
        self.journal = journal
        self.stored: list[Stored] = []

    @property
    def is_kept(self) -> bool:
        """Whether the topic is stored."""
        return not self.scene.topic.startswith("non-persistent")

    def declare(self, client: Client, admin: Admin) -> None:
        """Give the topic, which is there, its policies and subscriptions."""
        scene = self.scene
        for name, value in scene.policies.items():
            admin.topics.policies.set(scene.topic, name, value)
        note(self.journal, DeclaredTopic(scene.topic, None, scene.ttl_ms, self.is_kept))
        for letters in scene.letters:
            note(self.journal, DeclaredTopic(letters, scene.topic))
        for plan in scene.consumers:
            if self.is_kept:
                declaring = Consuming(
                    f"{scene.name}-{plan.subscription}-first", plan, self.notes, lambda: client, 0
                )
                declaring.subscribe(client).close()
                note(self.journal, DeclaredSubscription(scene.topic, plan.subscription, plan.ordering))

    def read_log(self, client: Client) -> None:
        """Note the whole log."""
        if not self.is_kept:
            return
        self.stored = stored_of(client, self.scene.topic, self.scene.partition_names)
        for message in self.stored:
            note(self.journal, message)

    def logs(self) -> dict[str, list[Stored]]:
        """The log of each partition."""
        names = self.scene.partition_names
        logs: dict[str, list[Stored]] = {name: [] for name in names} if self.is_kept else {}
        for message in self.stored:
            logs[names[max(0, message.place[0])]].append(message)
        return logs

    def missing(self) -> dict[str, set[tuple[str, int]]]:
        """What each subscription has not given yet of what the log has, but for what may have expired."""
        if not self.is_kept:
            return {}
        highest_ms, ttl_ms = self.notes.clock.highest_ms(), self.scene.ttl_ms
        wanted = {
            (message.producer, message.number)
            for message in self.stored
            if not ttl_ms or message.published_ms + ttl_ms > highest_ms
        }
        names = [plan.subscription for plan in self.scene.consumers]
        left = {name: wanted - self.notes.received.get(name, set()) for name in names}
        return {name: numbers for name, numbers in left.items() if numbers}

    def missing_letters(self, client: Client) -> int:
        """How many failing messages of the log are no dead letters yet."""
        guilty = {(m.producer, m.number) for m in self.stored if always_fails(m.number)}
        missing = 0
        for letters in self.scene.letters:
            with suppress(PulsarException):
                found = stored_of(client, letters, [letters])
                missing += len(guilty - {(m.producer, m.number) for m in found})
        return missing

    def count_missing(self, client: Client) -> int:
        """How many messages are not given yet, or no dead letters."""
        return sum(map(len, self.missing().values())) + self.missing_letters(client)

    def note_letters(self, client: Client) -> None:
        for letters in self.scene.letters:
            for message in stored_of(client, letters, [letters]):
                note(self.journal, message)

    def note_values(self, admin: Admin) -> None:
        """What has become of all that an administrator of the topic ever changed."""
        note_values(admin, self.scene.topic, changed_subjects(self.notes.directory), self.journal)

    def note_what_remains(self, client: Client) -> None:
        """What subscriptions still give when all their consumers have left."""
        if not self.is_kept:
            return
        for plan in self.scene.consumers:
            looking = Consuming(
                f"{self.scene.name}-{plan.subscription}-last", plan, self.notes, lambda: client, 0
            )
            consumer = looking.subscribe(client)
            with suppress(Timeout):
                while True:
                    message = consumer.receive(QUIET_MS)
                    if plan.retries and "RETRY" in message.topic_name():
                        continue
                    note(
                        self.journal,
                        Remains(self.scene.topic, plan.subscription, id_of(message.message_id())),
                    )
            consumer.close()


def subscribers_of(scene: Scene) -> list[Subscriber]:
    """The subscriptions of a scene, on each partition; none of a topic that is not stored."""
    names = [] if scene.topic.startswith("non-persistent") else scene.partition_names
    return [Subscriber(name, plan.subscription, plan.kind) for name in names for plan in scene.consumers]
