"""A dispatcher as simple as can be: a dictionary of messages, and clients that lose packets and crash.

Every grant of the real dispatcher is checked against it, and so are counts, pending acks and mark-delete.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

import msgpack

from pulsar_ray.dispatch.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Departure, Dispatcher, DispatchSettings
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.managed_ledger.cursor_changes import CursorChanges
from pulsar_ray.managed_ledger.cursor_records import (
    apply_changes,
    changes_payload,
    cursor_from_snapshot,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.managed_cursor import ManagedCursor, Subscription
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.position import Position

Message = tuple[int, int, int]
"""(ledger, entry, batch index or 0)."""
GRACE_MS = 5_000


@dataclass
class Client:
    """A consumer's client: what is on the way to it, in its queue, and in its application's hands."""

    spec: ConsumerSpec
    queue_size: int
    lane: deque[Grant | DropQueue] = field(default_factory=deque)
    queue: deque[tuple[Message, Grant, int]] = field(default_factory=deque)
    handed: dict[Message, tuple[Grant, int]] = field(default_factory=dict)
    received: int = 0
    received_messages: int = 0
    left_queue: int = 0
    reported_left: int = 0
    is_attached: bool = True
    epoch: int = 0

    @property
    def consumer_id(self) -> int:
        return self.spec.consumer_id


def messages_of(ref: BlockRef, rows: tuple[tuple[int, int], ...]) -> list[Message]:
    return [
        (ref.ledger_id, ref.first_entry_id + row, 0)
        if ref.row_is_entry
        else (ref.ledger_id, ref.first_entry_id, row)
        for start, end in rows
        for row in range(start, end)
    ]


@dataclass
class Facts:
    """What the model knows; a restart falls back to the facts of the last flush."""

    acked: set[Message] = field(default_factory=set)
    durable: set[Message] = field(default_factory=set)
    done: set[tuple[int, int]] = field(default_factory=set)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    failures: dict[Message, int] = field(default_factory=dict)

    def copy(self) -> Facts:
        return Facts(
            set(self.acked), set(self.durable), set(self.done), dict(self.counts), dict(self.failures)
        )


class World:
    """One subscription with its log, its dispatcher, its clients, and the model of what must be so."""

    def __init__(self, seed: int, consumer_type: ConsumerType, index_acks: bool) -> None:
        self.random = random.Random(seed)
        self.type = consumer_type
        self.index_acks = index_acks
        self.is_ordered = consumer_type == ConsumerType.Exclusive
        self.max_unacked = self.random.choice([0, 0, 12])
        self.now_ms = 1_000
        self.epoch = 1
        self.next_id = 1
        self.refs: list[BlockRef] = []
        self.entries: dict[tuple[int, int], list[Message]] = {}
        self.ref_of: dict[tuple[int, int], BlockRef] = {}
        self.ledger = self.random.randint(1, 5)
        self.next_entry = 0
        self.facts = Facts()
        self.holder: dict[Message, tuple[int, bool]] = {}  # consumer id, granted as a suspect
        self.suspects: set[Message] = set()
        self.clients: dict[int, Client] = {}
        self.last_granted: tuple[int, Message] | None = None
        self.log: list[dict[str, object]] = []
        cursor = ManagedCursor(Subscription("s"), Position(0, -1))
        self.log.append(snapshot_payload(cursor))
        self.dispatcher = Dispatcher(cursor, self._settings(), epoch=1, now_ms=0)
        self.flush()

    def _settings(self) -> DispatchSettings:
        return DispatchSettings(self.max_unacked, 0, self.index_acks, GRACE_MS)

    # ---- the log

    def publish(self) -> None:
        if self.random.random() < 0.1:
            self.ledger += self.random.randint(1, 3)
            self.next_entry = 0
        kind = self.random.choice(["single", "rows", "rows", "batch"])
        messages = 1 if kind == "single" else self.random.randint(2, 9)
        entries = messages if kind == "rows" else 1
        ref = BlockRef(self.ledger, 0, 0, 100, self.next_entry, entries, messages, kind == "rows")
        self.next_entry += entries
        self.refs.append(ref)
        for message in messages_of(ref, ref.all_rows):
            self.entries.setdefault(message[:2], []).append(message)
            self.ref_of[message[:2]] = ref

    def offer(self) -> None:
        wanted = self.dispatcher.blocks_wanted()
        blocks = []
        for ref in self.refs:
            if (ref.ledger_id, ref.last_entry_id) >= self.dispatcher.read_position and wanted > 0:
                blocks.append(ref)
                wanted -= ref.messages
        self.dispatcher.offer(blocks, self.dispatcher.seek_generation)
        self.dispatcher.offer(blocks[:1], self.dispatcher.seek_generation)  # repeats are harmless
        self.dispatcher.offer(self.refs, self.dispatcher.seek_generation - 1)  # so are stale ones

    def is_complete(self, entry: tuple[int, int]) -> bool:
        return all(message in self.facts.acked for message in self.entries[entry])

    # ---- grants

    def dispatch(self) -> None:
        self.offer()
        before = {i: self.dispatcher.consumers[i].permits for i in self.dispatcher.consumers}
        for grant in self.dispatcher.dispatch(self.now_ms):
            client = self.clients[grant.consumer_id]
            assert client.is_attached, "granted to a detached consumer"
            permits = before[grant.consumer_id]
            rows = messages_of(grant.block, grant.rows)
            assert permits > 0, "granted without permits"
            assert grant.block.is_batch or len(rows) <= permits, "a block of entries overdrew the permits"
            before[grant.consumer_id] -= len(rows)
            self._check_grant(grant, rows)
            client.lane.append(grant)

    def _check_grant(self, grant: Grant, rows: list[Message]) -> None:
        facts = self.facts
        assert rows
        if grant.is_suspect:
            assert len(rows) == 1
            assert rows[0] in self.suspects, "not a suspect"
            assert not any(c == grant.consumer_id for c, _ in self.holder.values()), "suspect not alone"
        else:
            assert not any(c == grant.consumer_id and s for c, s in self.holder.values()), "beside a suspect"
        for message in rows:
            assert message not in self.holder, f"{message} is at {self.holder[message]} already"
            assert not self.is_complete(message[:2]), f"{message} is acknowledged"
            assert message not in facts.durable, f"{message} was acknowledged durably by index"
            assert grant.is_suspect or message not in self.suspects, f"{message} is suspect"
            assert grant.redelivery_count == facts.counts.get(message[:2], 0), f"count of {message}"
            if self.is_ordered:
                at = (self.dispatcher.generation, message)
                assert self.last_granted is None or at > self.last_granted, f"{message} out of order"
                self.last_granted = at
        if grant.block.is_batch:
            known = {m: f for m in self.entries[rows[0][:2]] if (f := facts.failures.get(m))}
            told = {(*rows[0][:2], r): f for a, b, f in grant.row_failures for r in range(a, b)}
            assert told == known, "failures by row"
            if not grant.is_suspect:
                absent = (
                    set(self.entries[rows[0][:2]])
                    - set(rows)
                    - self.suspects
                    - facts.acked
                    - set(self.holder)
                )
                assert not absent, f"batch came without {absent}"
        for message in rows:
            self.holder[message] = (grant.consumer_id, grant.is_suspect)
            self.suspects.discard(message)
        if self.max_unacked and not self.is_ordered:
            held = sum(1 for c, _ in self.holder.values() if c == grant.consumer_id)
            assert held < self.max_unacked + 9

    # ---- clients

    def add_client(self) -> None:
        if self.is_ordered and self.clients:
            return
        spec = ConsumerSpec(
            self.next_id, f"c{self.next_id}", self.type, self.random.choice([0, 0, 1]), self.index_acks
        )
        if self.dispatcher.must_wait(spec):
            self.now_ms += GRACE_MS
            self.dispatcher.expire(self.now_ms)
        self.next_id += 1
        client = self.clients[spec.consumer_id] = Client(spec, self.random.choice([1, 3, 10, 50]))
        attachment = self.dispatcher.attach_consumer(spec, self.now_ms)
        assert not attachment.resumed
        client.epoch = self.epoch
        self.last_granted = None
        self.report(client)
        self.flush()

    def some_client(self) -> Client | None:
        attached = [client for client in self.clients.values() if client.is_attached]
        return self.random.choice(attached) if attached else None

    def report(self, client: Client) -> None:
        client.reported_left = client.left_queue
        self.dispatcher.set_credit(
            client.consumer_id, client.left_queue + client.queue_size, client.received, client.left_queue
        )

    def arrive(self, client: Client) -> None:
        for _ in range(self.random.randint(0, len(client.lane))):
            packet = client.lane.popleft()
            if isinstance(packet, DropQueue):
                client.left_queue += len(client.queue)
                client.queue.clear()
                continue
            client.received = packet.number
            for message in messages_of(packet.block, packet.rows):
                client.queue.append((message, packet, client.received_messages))
                client.received_messages += 1

    def receive(self, client: Client) -> None:
        for _ in range(self.random.randint(1, 6)):
            if not client.queue:
                return
            message, grant, index = client.queue.popleft()
            client.left_queue += 1
            client.handed[message] = (grant, index)
            if grant.is_suspect or self.random.random() < 0.3:
                self.report(client)

    def acknowledge(self, client: Client) -> None:
        mine = sorted(client.handed)
        chosen = [m for m in mine if self.random.random() < 0.6]
        if not chosen:
            return
        for message in chosen:
            del client.handed[message]
        sender = self.random.choice([client, client, self.some_client() or client])
        if self.is_ordered and self.random.random() < 0.3:
            self._acknowledge_cumulative(client, chosen[-1])
            return
        ranges: list[tuple[int, int, int]] = []
        batch: list[tuple[int, int, tuple[tuple[int, int], ...]]] = []
        for ledger, entry, row in chosen:
            if self.ref_of[ledger, entry].is_batch:
                batch.append((ledger, entry, ((row, row + 1),)))
            elif ranges and ranges[-1][:1] == (ledger,) and ranges[-1][2] == entry - 1:
                ranges[-1] = (ledger, ranges[-1][1], entry)
            else:
                ranges.append((ledger, entry, entry))
        self.dispatcher.acknowledge(sender.consumer_id, ranges, batch)
        for message in chosen:
            self._acked(message)

    def _acknowledge_cumulative(self, client: Client, last: Message) -> None:
        ledger, entry, row = last
        is_batch = self.ref_of[ledger, entry].is_batch
        self.dispatcher.acknowledge(client.consumer_id, cumulative=(ledger, entry, row if is_batch else -1))
        for messages in self.entries.values():
            for message in messages:
                if message <= last:
                    self._acked(message, by_index=message[:2] == last[:2])

    def _acked(self, message: Message, by_index: bool = True) -> None:
        if self.is_complete(message[:2]):
            return
        self.facts.acked.add(message)
        if (self.index_acks and by_index) or (
            self.ref_of[message[:2]].is_batch and message[:2] >= self.dispatcher.read_position
        ):
            self.facts.durable.add(message)
        if self.holder.get(message) is not None:
            del self.holder[message]
        self.suspects.discard(message)
        if self.is_complete(message[:2]):
            for row in self.entries[message[:2]]:
                self.holder.pop(row, None)
                self.suspects.discard(row)
                self.facts.failures.pop(row, None)
            self.facts.counts.pop(message[:2], None)

    def _fail(self, consumer_id: int, failed: list[Message]) -> None:
        """Count failures per entry and per message, and let go of what comes again with them."""
        for entry in {message[:2] for message in failed}:
            self.facts.counts[entry] = self.facts.counts.get(entry, 0) + 1
            if self.ref_of[entry].is_batch:
                for row in self.entries[entry]:
                    if self.holder.get(row, (0,))[0] == consumer_id:
                        del self.holder[row]
        for message in failed:
            if self.ref_of[message[:2]].is_batch:
                self.facts.failures[message] = self.facts.failures.get(message, 0) + 1
            self.holder.pop(message, None)

    def negative_acknowledge(self, client: Client) -> None:
        self.offer()
        chosen = [m for m in sorted(client.handed) if self.random.random() < 0.4]
        items = []
        failed: list[Message] = []
        for message in chosen:
            grant, _ = client.handed.pop(message)
            row = message[1] - grant.block.first_entry_id if grant.block.row_is_entry else message[2]
            entry = grant.block.first_entry_id
            items.append((grant.block.ledger_id, entry, ((row, row + 1),), grant.redelivery_count))
            if (
                self.holder.get(message, (0,))[0] == client.consumer_id
                and self.facts.counts.get(message[:2], 0) == grant.redelivery_count
                and not (grant.block.is_batch and message[:2] in {f[:2] for f in failed})
            ):
                failed.append(message)
        repeats = 2 if self.random.random() < 0.2 else 1
        answers = []
        for _ in range(repeats):
            answers += self.dispatcher.negative_acknowledge(client.consumer_id, items)
        self._fail(client.consumer_id, failed)
        if failed and self.is_ordered:
            lowest = min(failed)
            if self.ref_of[lowest[:2]].is_batch:
                lowest = (*lowest[:2], 0)
            self.holder = {m: h for m, h in self.holder.items() if m < lowest}
        assert len(answers) == (1 if failed and self.is_ordered else 0)
        client.lane.extend(answers)

    def redeliver(self, client: Client) -> None:
        """The client drops its queue, then asks for everything."""
        self.offer()
        client.left_queue += len(client.queue)
        through = client.received
        on_the_way = {m for g in client.lane if isinstance(g, Grant) for m in messages_of(g.block, g.rows)}
        self.report(client)
        client.queue.clear()
        held = [m for m, (c, _) in self.holder.items() if c == client.consumer_id and m not in on_the_way]
        client.handed.clear()
        answers = self.dispatcher.redeliver_unacknowledged(client.consumer_id, through)
        self._fail(client.consumer_id, held)
        if self.is_ordered:
            self.holder.clear()
        client.lane.extend(answers)

    # ---- coming and going

    def detach(self, client: Client) -> None:
        client.is_attached = False
        client.lane.clear()
        self.dispatcher.detach_consumer(client.consumer_id, self.now_ms)

    def reattach(self, client: Client) -> None:
        held: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for message, grant in [(m, g) for m, g, _ in client.queue] + [
            (m, g) for m, (g, _) in client.handed.items()
        ]:
            ref = grant.block
            row = message[1] - ref.first_entry_id if ref.row_is_entry else message[2]
            held.setdefault((ref.ledger_id, ref.first_entry_id), []).append((row, row + 1))
        attachment = self.dispatcher.attach_consumer(
            client.spec,
            self.now_ms,
            epoch=client.epoch,
            received=client.received,
            held=[(*key, rows) for key, rows in held.items()],
            received_messages=client.received_messages,
        )
        assert attachment.resumed == (client.epoch == self.epoch)
        client.is_attached = True
        if attachment.resumed:
            if self.is_ordered:
                # The rewind may have been lost on the way; the generation tells.
                for message, _, _ in list(client.queue):
                    if self.holder.get(message, (0,))[0] != client.consumer_id or message in {
                        m for g in attachment.again for m in messages_of(g.block, g.rows)
                    }:
                        client.queue = deque(q for q in client.queue if q[0] != message)
                        client.left_queue += 1
            client.lane.extend(attachment.again)
        else:
            client.epoch = self.epoch
            client.received = 0
            self._claim(client, held)
        self.report(client)
        self.flush()

    def _claim(self, client: Client, held: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
        for key, rows in held.items():
            ref = self.ref_of[key]
            free = [
                message
                for message in messages_of(ref, tuple(sorted(rows)))
                if message not in self.holder
                and message not in self.facts.durable
                and not self.is_complete(message[:2])
            ]
            for message in free:
                self.holder[message] = (client.consumer_id, False)
                self.suspects.discard(message)
            if ref.is_batch and free:
                self.facts.acked.update(
                    m for m in self.entries[key] if m not in self.holder and m not in self.facts.acked
                )

    def leave(self, client: Client, how: Departure) -> None:
        del self.clients[client.consumer_id]
        self._let_go(client, how)
        self.dispatcher.remove_consumer(client.consumer_id, how)

    def _let_go(self, client: Client, how: Departure) -> None:
        handed = {m: i for m, (_, i) in client.handed.items()} | {m: i for m, _, i in client.queue}
        for message, (consumer_id, is_suspect) in list(self.holder.items()):
            if consumer_id != client.consumer_id:
                continue
            if is_suspect and how is Departure.CRASHED and handed.get(message, 10**9) < client.reported_left:
                self._fail(consumer_id, [message])
            self.holder.pop(message, None)
            was_read = message[:2] < self.dispatcher.read_position
            if (how is Departure.CRASHED or is_suspect) and was_read and message not in self.facts.acked:
                self.suspects.add(message)

    def wait_for_the_missing(self) -> None:
        self.now_ms += GRACE_MS
        gone = self.dispatcher.expire(self.now_ms)
        lost = [client for client in self.clients.values() if not client.is_attached]
        assert set(gone) <= {client.consumer_id for client in lost}
        for client in lost:
            del self.clients[client.consumer_id]
            if client.epoch == self.epoch:
                self._let_go(client, Departure.CRASHED)

    def seek(self) -> None:
        if not self.refs:
            return
        ref = self.random.choice(self.refs)
        position = Position(ref.ledger_id, ref.first_entry_id + self.random.randrange(ref.entries))
        for drop in self.dispatcher.seek(position):
            if self.clients[drop.consumer_id].is_attached:
                self.clients[drop.consumer_id].lane.append(drop)
        facts = self.facts = Facts()
        facts.acked = {m for e, ms in self.entries.items() if e < position for m in ms}
        self.holder.clear()
        self.suspects.clear()
        self.last_granted = None
        self.flush()

    # ---- durability

    def flush(self) -> None:
        cursor = self.dispatcher.cursor
        if self.random.random() < 0.1:
            self.log = [snapshot_payload(cursor)]
        else:
            self.log.append(changes_payload(cursor))
        cursor.changes = CursorChanges(is_recorded=True)
        self.log = msgpack.unpackb(msgpack.packb(self.log), strict_map_key=False)
        # That a batch which was not read yet is complete can only be known when it is.
        read = self.dispatcher.read_position
        self.facts.done |= {
            entry
            for entry in self.entries
            if self.is_complete(entry) and (entry < read or not self.ref_of[entry].is_batch)
        }
        self.flushed = self.facts.copy()
        self.flushed.acked = {
            m for m in self.facts.acked if m[:2] in self.facts.done or m in self.facts.durable
        }

    def restart(self) -> None:
        """The dispatcher dies: what was not flushed is forgotten, and all clients have lost their lanes."""
        cursor = cursor_from_snapshot(self.log[0])
        for payload in self.log[1:]:
            apply_changes(cursor, payload)
        spans: dict[int, int] = {}
        for ref in self.refs:
            spans[ref.ledger_id] = ref.last_entry_id
        cursor.set_ledgers(sorted(spans.items()))
        self.epoch += 1
        self.facts = self.flushed.copy()
        self.holder.clear()
        self.suspects.clear()
        self.last_granted = None
        self.dispatcher = Dispatcher(cursor, self._settings(), epoch=self.epoch, now_ms=self.now_ms)
        for client in self.clients.values():
            client.is_attached = False
            client.lane.clear()
        back = [client for client in self.clients.values() if self.random.random() < 0.8]
        self.random.shuffle(back)
        for client in back:
            if self.random.random() < 0.5:
                self.offer()
            self.reattach(client)
        # Reading what they hold is the first thing its owner does.
        self.offer()
        if self.random.random() < 0.5:
            assert len(back) == len(self.clients) or self.dispatcher.dispatch(self.now_ms) == []
        self.wait_for_the_missing()

    # ---- checks

    def validate(self) -> None:
        self.dispatcher.validate()
        cursor = self.dispatcher.cursor
        read = self.dispatcher.read_position
        below = [entry for entry in self.entries if entry < read]
        left = [entry for entry in below if not self.is_complete(entry)]
        known = [entry for entry in below if not cursor.is_acknowledged(Position(*entry))]
        assert left == known, f"unacknowledged entries {known}, expected {left}"
        first_left = min(left, default=None)
        if first_left is not None:
            assert cursor.mark_delete < first_left
        pending = {
            message: delivery.consumer.spec.consumer_id
            for block in self.dispatcher.pending.blocks.values()
            for delivery in block.deliveries
            for message in messages_of(block.ref, delivery.rows)
        }
        expected = {m: c for m, (c, _) in self.holder.items() if m[:2] < read}
        assert pending == expected, "pending at other consumers than expected"
        for block in self.dispatcher.pending.blocks.values():
            suspects = set(messages_of(block.ref, tuple((a, b) for a, b, _ in block.suspects)))
            expected_suspects = {m for m in self.suspects if self.ref_of[m[:2]] is block.ref}
            assert suspects == expected_suspects, f"suspects of {block.ref}"

    def drain(self) -> None:
        """One consumer with plenty of credit gets and acknowledges all that is left: nothing was lost."""
        for client in list(self.clients.values()):
            self.leave(client, self.random.choice(list(Departure)))
        self.wait_for_the_missing()
        self.max_unacked = 0
        self.add_client()
        (client,) = self.clients.values()
        client.queue_size = 1_000
        for _ in range(3 * len(self.entries) + 10):
            self.report(client)
            self.dispatch()
            while client.lane:
                self.arrive(client)
            while client.queue:
                self.receive(client)
            while client.handed:
                self.acknowledge(client)
        self.validate()
        assert all(self.is_complete(entry) for entry in self.entries), "messages were lost"
        assert self.dispatcher.cursor.backlog() == 0
        assert not self.dispatcher.pending.blocks
