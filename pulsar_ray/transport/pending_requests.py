"""Requests of one link that wait for their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from pulsar_ray.errors import PulsarException, error_from
from pulsar_ray.session.requests import ConsumerOpened, Done, Failed, ProducerOpened

Reply = Callable[[Any, PulsarException | None], None]
"""reply(value, None) or reply(None, error)."""
ANSWERS = (Done, Failed, ProducerOpened, ConsumerOpened)


class PendingRequests:
    """The requests of one link that wait for answers.

    Each request has an id of its own, and its reply is called once.
    """

    def __init__(self) -> None:
        self._replies: dict[int, Reply] = {}
        self._request_ids = itertools.count(1)

    @property
    def are_awaited(self) -> bool:
        """Whether any answer is to come."""
        return bool(self._replies)

    def add(self, reply: Reply) -> int:
        """The id for a request whose answer goes to `reply`."""
        request_id = next(self._request_ids)
        self._replies[request_id] = reply
        return request_id

    def answered(self, answer: Done | Failed | ProducerOpened | ConsumerOpened) -> None:
        """An answer arrived; one that nobody waits for is dropped."""
        reply = self._replies.pop(answer.request_id, None)
        if reply is None:
            return
        if type(answer) is Failed:
            reply(None, error_from(answer.error, answer.text, answer.details))
        elif type(answer) is Done:
            reply(answer.value, None)
        else:
            reply(answer, None)

    def fail(self, request_id: int, error: PulsarException) -> None:
        """A request could not be sent; nothing happens if its reply was called meanwhile."""
        reply = self._replies.pop(request_id, None)
        if reply is not None:
            reply(None, error)

    def fail_all(self, error: PulsarException) -> None:
        """No answer will come any more to what was asked so far."""
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply(None, error)
