"""The reader of an asyncio client."""

from __future__ import annotations

from functools import partial
from typing import Any

from pulsar_ray.asyncio.blocking_calls import in_thread
from pulsar_ray.asyncio.lazy_handle import LazyHandle, OpeningClient
from pulsar_ray.asyncio.loop_handles import LoopReader
from pulsar_ray.asyncio.receiving import has_message_available, receive_one
from pulsar_ray.client.consumer.consumer import receive_timeout_s
from pulsar_ray.client.received.message import Message
from pulsar_ray.model.message_id import MessageId


class Reader(LazyHandle[LoopReader]):
    """Reads a topic from a message id on.

    It holds nothing back and leaves no subscription behind. Made by `Client.create_reader`; pickled, it
    starts anew at its first awaited call.
    """

    _what = "reader"

    def __init__(
        self, client: OpeningClient, arguments: dict[str, Any], inner: LoopReader | None = None
    ) -> None:
        super().__init__(client)
        self._arguments = arguments
        if inner is not None:
            self._opened(inner)

    async def _open(self) -> LoopReader:
        return await self._client.open_reader(self._arguments)

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for ever, or so many ms (then Timeout).

        Cancelled, it loses none.
        """
        self._client.loop()
        inner = self._inner or await self._open_first()
        timeout_s = None if timeout_millis is None else receive_timeout_s(timeout_millis)
        message = await receive_one(inner.core, timeout_s)
        inner.read(message)
        return message

    async def has_message_available(self) -> bool:
        """Whether `read_next` would find a message that is stored by now."""
        inner = await self._open_first()
        return await has_message_available(inner.core, self._client.operation_timeout_s)

    async def seek(self, messageid: MessageId | int) -> None:
        """Go on behind this message, or at a publish time in ms.

        At the message with `start_message_id_inclusive`.
        """
        await in_thread((await self._open_first()).seek, messageid)

    async def close(self) -> None:
        """Leave. A second call raises AlreadyClosed, one after `Client.shutdown` does not."""
        await super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Reader, self._client, self._arguments), ()
