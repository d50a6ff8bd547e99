"""The settings that hold for one topic's actor: the broker's, overridden by the topic's policies."""

from __future__ import annotations

import logging

from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.model.policies import NO_POLICIES, PolicyUpdate

logger = logging.getLogger(__name__)


class PoliciesInForce:
    """Takes updates in whatever order they come; belongs to the owner loop.

    An actor that Ray has restarted has the policies of when it was created (`is_stale`). Until the controller
    has answered it what holds now, it deletes nothing and delivers no delayed message early: another policy
    might forbid it. The same holds while the controller itself does not know all policies, and while these
    contradict the broker's own settings.
    """

    def __init__(
        self, broker: Settings, update: PolicyUpdate = NO_POLICIES, *, is_stale: bool = False
    ) -> None:
        self._broker = broker
        self.settings = broker
        """Of the topic; another object after each change."""
        self.version = -1
        self.is_restarted = is_stale
        """Whether the actor was there before: what it serves needs no place anew."""
        self.are_current = False
        """Whether the policies are those that hold now."""
        try:
            self.take(update)
        except InvalidConfiguration as error:
            # Dying would only make Ray restart the actor for ever.
            logger.error("the policies of this topic are not in force, and nothing is deleted: %s", error)
        else:
            self.are_current = update.is_complete and not is_stale

    def take(self, update: PolicyUpdate) -> bool:
        """Let an update hold from now on; returns False for a late or repeated one.

        Raises InvalidConfiguration for overrides that the settings refuse: the former ones hold, and nothing
        is deleted.
        """
        if update.version > self.version:
            self.are_current = False
            self.settings = self._broker.replace(**update.overrides) if update.overrides else self._broker
            self.version = update.version
            self.are_current = update.is_complete
            return True
        self.are_current |= update.version == self.version and update.is_complete
        return False
