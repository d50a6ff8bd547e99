"""An administrator on a thread, who makes topics and changes policies, and writes down what was answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pulsar_ray import Client
from pulsar_ray.admin import Admin
from pulsar_ray.errors import TopicNotFound
from tests.faults.history.operations import ChangeInvoked, ChangeOk, ValueFound, note, operation_of
from tests.faults.journal import Journal, read_journal
from tests.torture.clients import Working

POLICY = "max_consumers"
CHANGES_OF_A_LIFE = 10_000
NEW_TOPIC_SHARE = 0.5
PARTITIONS = 2
PAUSE_S = 0.2


class Administering(Working):
    """The only one that changes its subjects; the number that stands for a value rises."""

    def __init__(self, name: str, new_admin: Callable[[], Admin], *arguments: Any) -> None:
        super().__init__(name, *arguments)
        self._new_admin = new_admin

    def live(self, client: Client) -> None:
        number = (self.lives + 1) * CHANGES_OF_A_LIFE
        with self._new_admin() as admin:
            while not self.stopped.wait(self.rng.random() * 2 * PAUSE_S):
                number += 1
                if self.rng.random() < NEW_TOPIC_SHARE:
                    self._make_topic(admin, f"{self.notes.topic}-made-{number}")
                else:
                    self._set_policy(admin, number)

    def _make_topic(self, admin: Admin, topic: str) -> None:
        self.note(ChangeInvoked(topic, PARTITIONS))
        admin.topics.create_partitioned_topic(topic, PARTITIONS)
        self.note(ChangeOk(topic, PARTITIONS))

    def _set_policy(self, admin: Admin, value: int) -> None:
        self.note(ChangeInvoked(self.notes.topic, value))
        admin.topics.policies.set(self.notes.topic, POLICY, value)
        self.note(ChangeOk(self.notes.topic, value))


def changed_subjects(history: Path) -> set[str]:
    """All that any administrator of a history began to change."""
    operations = (
        operation_of(record) for path in history.glob("*-admin-*.journal") for record in read_journal(path)
    )
    return {each.subject for each in operations if isinstance(each, ChangeInvoked)}


def note_values(admin: Admin, topic: str, subjects: Iterable[str], journal: Journal) -> None:
    """Note what the broker has of everything that an administrator of a topic ever changed; 0 for nothing."""
    for subject in subjects:
        if subject == topic:
            found = admin.topics.policies.get(topic, POLICY).value[POLICY]
        else:
            try:
                found = admin.topics.get_partitions(subject)
            except TopicNotFound:
                found = 0
        note(journal, ValueFound(subject, int(found)))
