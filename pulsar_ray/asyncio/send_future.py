"""A message on its way, as the future that its sender awaits."""

from __future__ import annotations

import asyncio
from typing import Any

from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.errors import PulsarException
from pulsar_ray.model.message_id import MessageId


class SendFuture(asyncio.Future[MessageId], ErrorCallback):
    """One message's receipt; completed on the loop it belongs to."""

    def __call__(self, result: Any, message_id: MessageId) -> None:
        if not self.done():
            self.set_result(message_id)

    def failed(self, error: PulsarException) -> None:
        if not self.done():
            # Tracebacks of different tasks must not pile up in one error.
            self.set_exception(error.again())
