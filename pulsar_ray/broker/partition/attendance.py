"""The consumers and readers of a partition, as its dispatchers report them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pulsar_ray.broker.partition.partition_policies import PartitionPolicies
from pulsar_ray.errors import ConsumerBusy, NotAllowedError
from pulsar_ray.model.registrations import check_properties_size, check_sum, kept_bytes
from pulsar_ray.session.control_calls import ATTENDANCE_CALLS, check_call
from pulsar_ray.session.session_table import Session


class Attendance:
    """Admits consumers and subscriptions; belongs to the owner loop.

    Counts are absolute, each dispatcher's for itself, so that repeats are harmless. A dispatcher that sleeps
    or was not heard yet counts as empty: a limit that was just set, or a partition that was just started, may
    let in a few too many. `subscriptions(name)` counts the durable subscriptions, but for the one of that
    name.
    """

    def __init__(self, topic: str, policies: PartitionPolicies, subscriptions: Callable[[str], int]) -> None:
        self._topic = topic
        self._policies = policies
        self._subscriptions = subscriptions
        self._counts: dict[str, tuple[Session, int, int]] = {}

    def answers(self, method: str) -> bool:
        """Whether this is the name of a call for `call`."""
        return method in ATTENDANCE_CALLS

    async def call(self, session: Session, method: str, arguments: dict[str, Any]) -> None:
        """Answer a dispatcher's call. Raises ConsumerBusy or NotAllowedError, with nothing counted."""
        check_call(ATTENDANCE_CALLS, "partition", method, arguments)
        if method == "admit_subscription":
            self.check_new_subscription(arguments["name"])
        elif method == "admit_consumer":
            self._admit(session, **arguments)
        else:
            self._report(session, **arguments)

    def _report(self, session: Session, dispatcher: str, consumers: int, readers: int) -> None:
        self._counts[dispatcher] = session, consumers, readers

    def _admit(
        self, session: Session, dispatcher: str, consumers: int, readers: int, is_new_reader: bool
    ) -> None:
        limit = self._policies.settings.max_consumers_per_topic
        of_others = sum(count for other, (_, count, _) in self._counts.items() if other != dispatcher)
        if 0 < limit < of_others + consumers:
            raise ConsumerBusy(
                f"{self._topic} has {of_others + consumers - 1} consumers, and its policy max_consumers "
                f"allows {limit}: close one, or raise the policy (setting max_consumers_per_topic)"
            )
        if is_new_reader:
            self._check_subscriptions(self._subscriptions("") + self._readers(besides=dispatcher) + readers)
        self._report(session, dispatcher, consumers, readers)

    def check_new_subscription(self, name: str) -> None:
        """Raise NotAllowedError if the topic may have no further subscription; readers count too."""
        self._check_subscriptions(self._subscriptions(name) + self._readers() + 1)

    def check_kept(self, name: str, properties: Mapping[str, str], others: Iterable[int]) -> None:
        """Raise NotAllowedError for properties of a subscription above the limits.

        `others` are the bytes that are kept of each other one.
        """
        policies = self._policies
        check_properties_size("subscription", properties, policies.settings.max_properties_bytes)
        new = kept_bytes(name, properties)
        check_sum("subscriptions", new, others, policies.settings.max_properties_bytes_per_actor)

    def _readers(self, besides: str | None = None) -> int:
        return sum(readers for other, (_, _, readers) in self._counts.items() if other != besides)

    def _check_subscriptions(self, with_new: int) -> None:
        limit = self._policies.settings.max_subscriptions_per_topic
        if 0 < limit < with_new:
            raise NotAllowedError(
                f"{self._topic} has {with_new - 1} subscriptions, readers counted, and its policy "
                f"max_subscriptions_per_topic allows {limit}: unsubscribe one, close a reader, or raise the "
                "policy"
            )

    def forget(self, session: Session) -> None:
        """The session ended; another life of its dispatcher may have been heard already."""
        self._counts = {name: counts for name, counts in self._counts.items() if counts[0] is not session}
