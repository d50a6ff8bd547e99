"""`Admin.namespaces`: what can be done to namespaces."""

from __future__ import annotations

import builtins
from functools import partial

from pulsar_ray.admin.ending_calls import EndingCalls
from pulsar_ray.admin.permissions import Permissions
from pulsar_ray.admin.policies import Policies
from pulsar_ray.admin.topic_calls import Broker, TopicCalls
from pulsar_ray.client.options.checks import check_flag, check_text
from pulsar_ray.errors import NotAllowedError, PulsarException, TopicNotFound
from pulsar_ray.model.policies import NAMESPACE
from pulsar_ray.model.topic_name import TopicName


class Namespaces:
    """Namespaces of a broker, written tenant/namespace: each has topics, and policies for these.

    Changes are durable when they return and may be repeated. A namespace that is not there is TopicNotFound
    with the nearest name. `public/default` and `pulsar/system` are there from the start and stay.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._ask = partial(broker.ask, "call_part", "administration")
        self._ending = EndingCalls(TopicCalls(broker))
        self.policies = Policies(broker, NAMESPACE)
        """They override the broker's settings for all topics of a namespace."""
        self.permissions = Permissions(broker, NAMESPACE)
        """The roles that may produce and consume, on all topics of a namespace."""

    def create(self, namespace: str) -> None:
        """Create a namespace of a tenant that is there.

        Raises NotAllowedError if it exists, TopicNotFound for a missing tenant, InvalidTopicName.
        """
        check_text("namespace", namespace)

        def is_there(refused: PulsarException) -> bool:
            return isinstance(refused, NotAllowedError) and namespace in self.list(
                namespace.partition("/")[0]
            )

        self._ask("create_namespace", namespace, was_done=is_there)

    def delete(self, namespace: str, force: bool = False) -> None:
        """Delete a namespace with its policies; by `force` with its topics and messages.

        Raises TopicNotFound, and NotAllowedError while it has topics, unless forced, and for `public/default`
        and `pulsar/system`.
        """
        check_text("namespace", namespace)
        check_flag("force", force)
        self._ask(
            "delete_namespace", namespace, force, was_done=lambda refused: isinstance(refused, TopicNotFound)
        )

    def clear_backlog(self, namespace: str, subscription: str | None = None) -> None:
        """Acknowledge all that a namespace's topics have stored by now.

        That is for one subscription, or for all.

        Durable when it returns, and no subscription is started for it. If some topics cannot be reached the
        others are cleared, and the first error is raised. Raises TopicNotFound for a missing namespace.
        """
        check_text("namespace", namespace)
        if subscription is not None:
            check_text("subscription", subscription)
        rows = self._broker.ask("list_topics", namespace, False)
        topics = [name for name, _ in rows if TopicName.parse(name).is_persistent]
        self._ending.clear_backlog(topics, subscription or "")

    def abandon_change_logs(self, namespace: str) -> builtins.list[str]:
        """Give up logs of policies whose disks are lost for good; returns their names.

        For a namespace whose policies cannot be changed because the store with their log never comes back.
        The catalog's policies are written to new logs; those that stood in the lost ones alone are gone. Does
        nothing to logs that can be read.
        """
        check_text("namespace", namespace)
        abandoned: builtins.list[str] = self._ask("abandon_change_logs", namespace)
        return abandoned

    def list(self, tenant: str) -> builtins.list[str]:
        """Return a tenant's namespaces as tenant/namespace, sorted. Raises TopicNotFound."""
        check_text("tenant", tenant)
        return sorted(self._ask("namespaces", tenant))
