"""A topic whose last message is its only writer's last decision."""

from __future__ import annotations

import logging

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.data.planning.broker_planner import BrokerPlanner
from pulsar_ray.data.planning.plan import AtMessages
from pulsar_ray.data.reading.segments import stored_rows
from pulsar_ray.errors import InvalidConfiguration, ProducerBusy, ProducerFenced, PulsarException, WrongNode
from pulsar_ray.model.enums import ProducerAccessMode
from pulsar_ray.model.message_id import MessageId

NAMESPACE = "public/default"
_APPENDS_PER_TRIM = 100
_log = logging.getLogger(__name__)


def log_topic(owner: str) -> str:
    """Name the topic of an owner's plans.

    No pattern of topics matches names that begin with __.
    """
    return f"persistent://{NAMESPACE}/__{owner}"


def check_name(name: object) -> None:
    """Raise InvalidConfiguration for a name that no topic could have."""
    if not isinstance(name, str) or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidConfiguration(f"name={name!r}: give letters, digits, - and _")


class PlanLog:
    """Keeps a writer's last record, durably, and every other writer out.

    A writer that lost its place (stopped, cut off) cannot append any more, so that what it does by its last
    record is done again by its successor, and nothing else.
    """

    HOLD = "last"
    """A subscription that keeps the last message, which a topic without any might trim."""

    def __init__(
        self, client: Client, admin: Admin, topic: str, owner: str, in_use: type[PulsarException]
    ) -> None:
        """Take the topic, which is created if it is new.

        Raises `in_use`, which names the owner, if another process has it.
        """
        self._admin = admin
        self._topic = topic
        self._owner = owner
        self._in_use = in_use
        self._appended = 0
        try:
            self._producer = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
        except (ProducerFenced, ProducerBusy) as error:
            raise in_use(
                f"{owner} runs already, here or in another process: stop it first, or take "
                "another name; the place of a process that was killed on another node is free after a minute"
            ) from error
        try:
            if self.HOLD not in admin.topics.subscriptions(topic):
                admin.topics.create_subscription(topic, self.HOLD, "earliest")
            _keep_for_ever(admin, topic)
            self.last = self._read_last(client)
        except BaseException:
            self._producer.close()
            raise
        """The record appended last, by whomever; None in a new topic."""

    def append(self, record: bytes) -> None:
        """Replace the last record, durably. Raises `in_use` if another writer has taken the topic."""
        try:
            message_id = self._producer.send(record)
        except ProducerFenced as error:
            raise self._in_use(f"another process has taken {self._owner}, and goes on instead") from error
        self.last = record
        self._appended += 1
        if self._appended % _APPENDS_PER_TRIM == 0:
            self._let_go_before(message_id)

    def _let_go_before(self, message_id: MessageId) -> None:
        try:
            self._admin.topics.reset_cursor(self._topic, self.HOLD, message_id)
        except PulsarException as error:
            # The record is stored, and older ones go some time later.
            if not error.retriable:
                raise
            _log.warning("former records of %s are kept for longer, after %s", self._owner, error)

    def close(self) -> None:
        """Let others take the topic."""
        self._producer.close()

    def __enter__(self) -> PlanLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_last(self, client: Client) -> bytes | None:
        last = self._admin.topics.get_last_message_id(self._topic)
        if last == MessageId():
            return None
        try:
            return self._stored(last)
        except WrongNode:
            return self._received(client)

    def _stored(self, last: MessageId) -> bytes | None:
        """The record out of the files of this node.

        A dispatcher, for a reader, would take most of a second to start.
        """
        planner = BrokerPlanner.on(self._admin.cluster)
        with planner.plan([self._topic], AtMessages((last,)), "latest") as plan:
            pieces = [rows for each in plan.ranges for rows in stored_rows(each)]
        return pieces[-1].block.values()[pieces[-1].stop - 1] if pieces else None

    def _received(self, client: Client) -> bytes | None:
        reader = client.create_reader(self._topic, MessageId.latest, start_message_id_inclusive=True)
        try:
            return reader.read_next().data() if reader.has_message_available() else None
        finally:
            reader.close()


def _keep_for_ever(admin: Admin, topic: str) -> None:
    """Let no expiry of the namespace take the last record."""
    if admin.topics.policies.get(topic, "message_ttl").value["message_ttl"]:
        admin.topics.policies.set(topic, "message_ttl", 0)
