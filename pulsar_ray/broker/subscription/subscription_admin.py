"""An administrator's calls to one durable subscription, at its dispatcher.

Every call may come twice: it is made durable before it is answered with its changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pulsar_ray.broker.serving.owner_loop import DiskThread
from pulsar_ray.broker.subscription.log.incomplete_messages import AskPartition, OpenMessages
from pulsar_ray.broker.subscription.log.log_view import LogView
from pulsar_ray.broker.subscription.log.partition_link import PartitionLink
from pulsar_ray.broker.subscription.served_subscription import ServedSubscription
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.inspect.key_stats import key_owner
from pulsar_ray.dispatch.inspect.peek import Peeked, peek
from pulsar_ray.dispatch.inspect.why_blocked import NOTHING_IN_THE_WAY, why_blocked
from pulsar_ray.errors import InvalidConfiguration, ServiceUnitNotReady
from pulsar_ray.ledger.reader import SegmentReader
from pulsar_ray.ledger.segment_file import segment_name
from pulsar_ray.managed_ledger.cursor.managed_cursor import ManagedCursor, deleted_text
from pulsar_ray.model import row_ranges
from pulsar_ray.model.message_id import Position

MAX_ANSWER_BYTES = 8 * 1024 * 1024
READ_AHEAD_MESSAGES = 10_000


class SubscriptionAdmin:
    """Runs on the owner loop. `look_around` and `seek` are the dispatcher's own."""

    def __init__(
        self,
        subscription: ServedSubscription,
        partition: PartitionLink,
        log: LogView,
        reader: DiskThread,
        directory: str,
        *,
        ask_partition: AskPartition,
        look_around: Callable[[], Awaitable[None]],
        waiting: Callable[[], str],
        seek: Callable[[str, Any, bool], Awaitable[int]],
    ) -> None:
        self._subscription = subscription
        self._partition = partition
        self._log = log
        self._reader = reader
        self._directory = directory
        self._open = OpenMessages(log, reader, ask_partition)
        self._look_around = look_around
        self._waiting = waiting
        self._seek = seek

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call by name. Raises InvalidConfiguration for one there is not."""
        methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "end_of_skip": self.end_of_skip,
            "acknowledge_through": self.acknowledge_through,
            "acknowledge_messages_through": self.acknowledge_messages_through,
            "expire": self.expire,
            "reset": self.reset,
            "peek": self.peek,
            "describe_cursor": self.describe_cursor,
            "refresh_properties": self.refresh_properties,
            "why_blocked": self.why_blocked,
            "key_owner": self.key_owner,
        }
        method = methods.get(name)
        if method is None:
            raise InvalidConfiguration(f"a dispatcher has no call {name!r}")
        return await method(**arguments)

    async def end_of_skip(self, entries: int | None) -> dict[str, Any]:
        """Where the first so many unacknowledged entries end (None: all), and how many there are.

        Changes nothing: acknowledging up to a position may be repeated, skipping a number may not.
        """
        await self._catch_up()
        cursor = self._subscription.core.cursor
        position = None if entries is None else cursor.unacknowledged(entries - 1)
        backlog = cursor.backlog()
        return {
            "position": list(position or cursor.ledgers.end),
            "entries": backlog if entries is None else min(entries, backlog),
        }

    async def acknowledge_through(self, position: list[int]) -> int:
        """Acknowledge everything at or below a position; how many entries were not."""
        await self._catch_up()
        return await self._changed(
            self._subscription.core.acknowledgments.acknowledge_through(Position(*position))
        )

    async def acknowledge_messages_through(self, position: list[int]) -> int:
        """Acknowledge the messages at or below a position; how many entries were not.

        One in chunks stands where its last chunk is. So chunks of messages behind the position are left.
        """
        await self._catch_up()
        core, last = self._subscription.core, Position(*position)
        kept = await self._open.chunks_up_to(core.cursor.mark_delete, last, self._subscription.now_ms())
        return await self._changed(core.acknowledgments.acknowledge_through(last, kept))

    async def expire(self, published_before_ms: int) -> int:
        """Acknowledge what lies before the first message published then or later; how many entries."""
        await self._catch_up()
        mark = await self._partition.call("seek_position", target=published_before_ms, inclusive=True)
        return await self._changed(self._subscription.expire(Position(*mark)))

    async def _changed(self, entries: int) -> int:
        self._subscription.turn.schedule()
        await self._subscription.flushed(self._subscription.core.cursor.version)
        return entries

    async def reset(self, target: Any) -> list[int]:
        """Start over at a message, a publish time in ms, "earliest" or "latest".

        Connected consumers drop what they have queued. Returns the new mark-delete position.
        """
        if isinstance(target, list):
            await self._partition.call("check_position", position=target)
        await self._seek(self._subscription.name, target, target != "latest")
        return list(self._subscription.core.cursor.mark_delete)

    async def peek(self, messages: int, behind: list[int]) -> dict[str, Any]:
        """See `peek_blocks`."""
        await self._catch_up()
        cursor = self._subscription.core.cursor
        return await peek_blocks(
            cursor, self._log, self._reader, self._directory, messages, Position(*behind)
        )

    async def describe_cursor(self) -> dict[str, Any]:
        """The subscription's stats with the text of its holes."""
        await self._look_around()
        text = deleted_text(self._subscription.core.cursor.deleted)
        return {**self._subscription.stats(), "individuallyDeletedMessages": text}

    async def refresh_properties(self) -> dict[str, str]:
        """Take the subscription's properties of now from the partition."""
        name = self._subscription.name
        registered = await self._partition.call(
            "register_subscription", name=name, durable=True, initial="latest", properties={}, create=False
        )
        properties: dict[str, str] = dict(registered["properties"])
        self._subscription.core.take_properties(properties)
        self._subscription.settings_changed()
        return properties

    async def why_blocked(self) -> dict[str, Any]:
        """See `dispatch.why_blocked`; of messages that nobody is shown yet, why their receipts wait."""
        await self._look_around()
        subscription = self._subscription
        described = why_blocked(subscription.core, subscription.now_ms(), subscription.delayed())
        if described["reason"].startswith(NOTHING_IN_THE_WAY):
            waits = self._waiting() or await self._partition.call("why_receipts_wait")
            described["reason"] = waits or described["reason"]
        return described

    async def key_owner(self, key: str) -> dict[str, Any]:
        """See `dispatch.key_stats.key_owner`."""
        return key_owner(self._subscription.core, key)

    async def _catch_up(self) -> None:
        """Know of everything that is stored by now. Raises ServiceUnitNotReady."""
        last = await self._partition.call("last_message")
        await self._look_around()
        if self._log.last < Position(*last["position"]):
            raise ServiceUnitNotReady("the dispatcher has not heard of the newest messages yet: ask again")


async def peek_blocks(
    cursor: ManagedCursor,
    log: LogView,
    reader: DiskThread,
    directory: str,
    messages: int,
    behind: Position,
) -> dict[str, Any]:
    """Blocks with up to so many unacknowledged messages behind a position, and the position reached.

    `blocks` are (ledger id, first entry id, rows, redelivery count, bytes), 8 MiB or one block at the most;
    `end` is where to ask again, None behind the last message. Raises CorruptData for a block that cannot be
    read.
    """
    position = max(cursor.mark_delete, behind).next()
    position = max(position, Position(0, 0))
    while (read := log.reader_from(position, None, READ_AHEAD_MESSAGES)) is not None:
        refs = (await reader.run(read.run)).refs
        if not refs:
            break
        last = Position(refs[-1].ledger_id, refs[-1].last_entry_id)
        found = peek(cursor, refs, messages)
        if found:
            blocks = await reader.run(lambda found=found: _contents(directory, found))  # type: ignore[misc]
            taken = found[: len(blocks)]
            is_complete = len(taken) == len(found) and _count(taken) < messages
            return {"blocks": blocks, "end": list(last if is_complete else _end_of(taken[-1].block))}
        position = last.next()
    return {"blocks": [], "end": None}


def _contents(directory: str, found: list[Peeked]) -> list[tuple[int, int, Any, int, bytes]]:
    contents: list[tuple[int, int, Any, int, bytes]] = []
    size = 0
    for block, rows, count in found:
        size += block.length
        if contents and size > MAX_ANSWER_BYTES:
            break
        path = Path(directory) / segment_name(block.ledger_id, block.segment_index)
        with SegmentReader(path) as segment:
            data = segment.read_block(block.offset, block.length)
        contents.append((block.ledger_id, block.first_entry_id, rows, count, data))
    return contents


def _count(found: list[Peeked]) -> int:
    return sum(row_ranges.count(rows) for _, rows, _ in found)


def _end_of(block: BlockRef) -> Position:
    return Position(block.ledger_id, block.last_entry_id)
