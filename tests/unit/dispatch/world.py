"""A log, a dispatcher and clients that receive, fail, lose packets, leave, crash and return, step by step."""

from __future__ import annotations

from collections import deque

import msgpack

from pulsar_ray.dispatch.blocks.block_intake import ReadBlocks
from pulsar_ray.dispatch.blocks.block_ref import BlockRef
from pulsar_ray.dispatch.consumer import ConsumerExit, ConsumerSpec
from pulsar_ray.dispatch.dispatcher import Dispatcher
from pulsar_ray.dispatch.grant import DropQueue, Grant
from pulsar_ray.managed_ledger.cursor.cursor_store import (
    apply_changes,
    changes_payload,
    cursor_from_snapshot,
    snapshot_payload,
)
from pulsar_ray.managed_ledger.cursor.managed_cursor import CursorChanges
from pulsar_ray.model.enums import ConsumerType
from pulsar_ray.model.message_id import Position
from pulsar_ray.model.row_sets import EntryBits
from tests.unit.dispatch.naive_model import GRACE_MS, Client, Facts, Message, NaiveModel, messages_of


class World(NaiveModel):
    """One subscription; each method but the checks is one step of a random run."""

    def __init__(self, seed: int, consumer_type: ConsumerType, index_acks: bool) -> None:
        super().__init__(seed, consumer_type, index_acks)
        self.now_ms = 1_000
        self.epoch = 1
        self.next_id = 1
        self.ledger = self.random.randint(1, 5)
        self.next_entry = 0
        self.clients: dict[int, Client] = {}
        self.log: list[dict[str, object]] = [snapshot_payload(self.dispatcher.cursor)]
        self.flush()

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
        self.slots[ref] = self.new_slots(ref)
        for message in messages_of(ref, ((0, ref.messages),)):
            self.entries.setdefault(message[:2], []).append(message)
            self.ref_of[message[:2]] = ref

    def _read(self, refs: list[BlockRef]) -> ReadBlocks:
        return ReadBlocks(refs, [self.slots[ref] for ref in refs])

    def offer(self) -> None:
        wanted = self.dispatcher.blocks_wanted()
        blocks = []
        for ref in self.refs:
            if (ref.ledger_id, ref.last_entry_id) >= self.dispatcher.intake.read_position and wanted > 0:
                blocks.append(ref)
                wanted -= ref.messages
        generation = self.dispatcher.reading_number
        self.dispatcher.offer(self._read(blocks), generation)
        # Repeats are harmless, and so are stale ones.
        self.dispatcher.offer(self._read(blocks[:1]), generation)
        self.dispatcher.offer(self._read(self.refs), generation - 1)

    def dispatch(self) -> None:
        self.elect()
        self.offer()
        self.look_at_suspects()
        before = {i: self.dispatcher.consumers[i].permits for i in self.dispatcher.consumers}
        for grant in self.dispatcher.dispatch(self.now_ms):
            client = self.clients[grant.incarnation]
            permits = before[grant.incarnation]
            rows = messages_of(grant.block, grant.rows)
            assert permits > 0, "granted without permits"
            assert grant.block.is_batch or len(rows) <= permits, "a block of entries overdrew the permits"
            before[grant.incarnation] -= len(rows)
            self.check_grant(grant, rows)
            # Its session keeps the place of a client without a connection, to which no grant arrives.
            if client.is_attached:
                client.lane.append(grant)
        self.check_nothing_is_stuck()

    def elect(self) -> None:
        """On Failover: everything pending comes again to the one whose turn it is, if that is another one."""
        drops = self.dispatcher.elect(self.now_ms)
        if self.type == ConsumerType.Failover and self.dispatcher.type.policy.active is not None:
            best = min(self.present(), key=lambda spec: (spec.priority_level, spec.joined))
            assert self.dispatcher.type.policy.active.spec == best, "another one's turn"
        if drops:
            assert {drop.incarnation for drop in drops} == {spec.incarnation for spec in self.present()}
            self.holder.clear()
        for drop in drops:
            if self.clients[drop.incarnation].is_attached:
                self.clients[drop.incarnation].lane.append(drop)

    def present(self) -> list[ConsumerSpec]:
        return [consumer.spec for consumer in self.dispatcher.consumers.values()]

    def add_client(self) -> None:
        if self.type == ConsumerType.Exclusive and self.clients:
            return
        level = self.random.choice([0, 0, 1])
        spec = ConsumerSpec(
            self.next_id,
            f"c{self.next_id}",
            self.type,
            level,
            self.index_acks,
            self.next_id,
            key_shared=self.key_shared_spec(),
        )
        if self.dispatcher.must_wait(spec):
            self.now_ms += GRACE_MS
            self.dispatcher.expire(self.now_ms)
        self.next_id += 1
        client = self.clients[spec.incarnation] = Client(spec, self.random.choice([1, 3, 10, 50]))
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
            client.incarnation, client.left_queue + client.queue_size, client.received, client.left_queue
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
            if self.random.random() < 0.3:
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
        bits: list[EntryBits] = []
        if self.random.random() < 0.5:
            # As clients say what is scattered, here however little there is.
            bits, ranges = [self._bits(ledger, ranges) for ledger in {part[0] for part in ranges}], []
        self.dispatcher.acknowledge(sender.incarnation, ranges, batch, entry_bits=bits)
        for message in chosen:
            self.acked(message)

    def _bits(self, ledger: int, ranges: list[tuple[int, int, int]]) -> EntryBits:
        entries = [entry for of, a, b in ranges if of == ledger for entry in range(a, b + 1)]
        first = max(min(entries) - self.random.randrange(3), 0)
        rows = sum(1 << entry - first for entry in entries)
        return ledger, first, rows.to_bytes(100, "little")

    def _acknowledge_cumulative(self, client: Client, last: Message) -> None:
        ledger, entry, row = last
        is_batch = self.ref_of[ledger, entry].is_batch
        self.dispatcher.acknowledge(client.incarnation, cumulative=(ledger, entry, row if is_batch else -1))
        for messages in self.entries.values():
            for message in messages:
                if message <= last:
                    self.acked(message, by_index=message[:2] == last[:2])

    def negative_acknowledge(self, client: Client) -> None:
        self.offer()
        chosen = [m for m in sorted(client.handed) if self.random.random() < 0.4]
        items = []
        failed: list[Message] = []
        taken_back: list[Message] = []
        for message in chosen:
            grant, _ = client.handed.pop(message)
            row = message[1] - grant.block.first_entry_id if grant.block.row_is_entry else message[2]
            entry = grant.block.first_entry_id
            items.append((grant.block.ledger_id, entry, ((row, row + 1),), grant.redelivery_count))
            if self.holder.get(message, (0,))[0] != client.incarnation:
                continue
            if grant.block.is_batch and message[:2] in {f[:2] for f in failed + taken_back}:
                continue
            # A former dispatcher may have counted the failure, or its counts were not durable.
            known = self.facts.counts.get(message[:2], 0)
            if known == grant.redelivery_count or (
                message in self.from_before and known < grant.redelivery_count
            ):
                failed.append(message)
            elif message in self.from_before:
                taken_back.append(message)
        repeats = 2 if self.random.random() < 0.2 else 1
        answers = []
        for _ in range(repeats):
            answers += self.dispatcher.negative_acknowledge(client.incarnation, items)
        self.fail(client.incarnation, failed)
        self.take_back(client.incarnation, taken_back)
        gone_back = failed + taken_back
        if gone_back and self.is_ordered:
            lowest = min(gone_back)
            if self.ref_of[lowest[:2]].is_batch:
                lowest = (*lowest[:2], 0)
            mine = client.incarnation
            self.holder = {m: h for m, h in self.holder.items() if m < lowest or h[0] != mine}
        assert len(answers) == (1 if gone_back and self.is_ordered else 0)
        client.lane.extend(answers)

    def redeliver(self, client: Client) -> None:
        """The client drops its queue, then asks for everything."""
        self.offer()
        client.left_queue += len(client.queue)
        through = client.received
        on_the_way = {m for g in client.lane if isinstance(g, Grant) for m in messages_of(g.block, g.rows)}
        self.report(client)
        client.queue.clear()
        held = [m for m, (c, _) in self.holder.items() if c == client.incarnation and m not in on_the_way]
        client.handed.clear()
        answers = self.dispatcher.redeliver_unacknowledged(client.incarnation, through)
        self.fail(client.incarnation, held)
        if self.is_ordered:
            self.holder = {m: h for m, h in self.holder.items() if h[0] != client.incarnation}
        client.lane.extend(answers)

    def detach(self, client: Client) -> None:
        client.is_attached = False
        client.lane.clear()

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
                    if self.holder.get(message, (0,))[0] != client.incarnation or message in {
                        m for g in attachment.again for m in messages_of(g.block, g.rows)
                    }:
                        client.queue = deque(q for q in client.queue if q[0] != message)
                        client.left_queue += 1
            client.lane.extend(attachment.again)
        else:
            client.epoch = self.epoch
            client.received = 0
            self.claim(client, held)
        self.report(client)
        self.flush()

    def leave(self, client: Client, how: ConsumerExit) -> None:
        del self.clients[client.incarnation]
        self.let_go(client, how)
        self.dispatcher.remove_consumer(client.incarnation, how, handed_over=client.left_queue)

    def wait_for_the_missing(self) -> None:
        """The dispatcher awaits nobody any more, and the sessions of those without a connection end."""
        self.now_ms += GRACE_MS
        self.patience = True
        self.dispatcher.expire(self.now_ms)
        for client in [client for client in self.clients.values() if not client.is_attached]:
            if client.epoch == self.epoch:
                self.leave(client, ConsumerExit.CRASHED)
            else:
                del self.clients[client.incarnation]

    def seek(self) -> None:
        if not self.refs:
            return
        ref = self.random.choice(self.refs)
        position = Position(ref.ledger_id, ref.first_entry_id + self.random.randrange(ref.entries))
        for drop in self.dispatcher.seek(position):
            if self.clients[drop.incarnation].is_attached:
                self.clients[drop.incarnation].lane.append(drop)
        facts = self.facts = Facts()
        facts.acked = {m for e, ms in self.entries.items() if e < position for m in ms}
        self.holder.clear()
        self.suspects.clear()
        self.from_before.clear()
        self.last_granted = None
        self.flush()

    def flush(self) -> None:
        cursor = self.dispatcher.cursor
        if self.random.random() < 0.1:
            self.log = [snapshot_payload(cursor)]
        else:
            self.log.append(changes_payload(cursor))
        cursor.changes = CursorChanges(is_recorded=True)
        self.log = msgpack.unpackb(msgpack.packb(self.log), strict_map_key=False)
        # That a batch which was not read yet is complete can only be known when it is.
        read = self.dispatcher.intake.read_position
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
        self.from_before.clear()
        self.last_granted = None
        self.dispatcher = Dispatcher(cursor, self.dispatcher.settings, epoch=self.epoch, now_ms=self.now_ms)
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

    def drain(self) -> None:
        """One consumer with plenty of credit gets and acknowledges all that is left: nothing was lost."""
        for client in list(self.clients.values()):
            self.leave(client, self.random.choice(list(ConsumerExit)))
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
        assert not self.dispatcher.blocks.index
