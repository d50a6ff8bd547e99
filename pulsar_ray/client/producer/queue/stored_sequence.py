"""Follows the highest sequence id that a partition has stored of a producer."""

from __future__ import annotations

import logging

from pulsar_ray.client.options.producer_options import ProducerOptions

logger = logging.getLogger(__name__)


class StoredSequence:
    """Counts on from what is stored, also by earlier producers of the name."""

    __slots__ = ("_options", "last_id")

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self.last_id = -1
        """The highest id that is stored; -1 if none is."""

    def begin(self, producer_name: str, stored_id: int) -> None:
        """Go on behind the ids of the name's earlier producers, unless the user said where."""
        self.last_id = max(stored_id, self._options.first_sequence_id(stored_id) - 1)
        initial_id = self._options.initial_sequence_id
        if initial_id is not None and initial_id < stored_id:
            logger.warning(
                "the producer %r begins at sequence id %d, and the topic holds its messages up to %d: those "
                "up to there are taken for duplicates, and not stored again",
                producer_name,
                initial_id + 1,
                stored_id,
            )

    def note(self, sequence_id: int) -> None:
        """Note a stored id; called for each block before its callbacks."""
        self.last_id = max(self.last_id, sequence_id)
