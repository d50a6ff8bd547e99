"""Damage and malice over every carrier: typed errors, and everything else goes on."""

from __future__ import annotations

import dataclasses
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_ray.broker.partition.publishing import publish_gate
from pulsar_ray.client.client import Client
from pulsar_ray.client.consumer.consumer import Consumer
from pulsar_ray.errors import (
    ChecksumError,
    CorruptData,
    DiskSpaceLow,
    InvalidMessage,
    ProtocolError,
    PulsarException,
    SessionLost,
    Timeout,
)
from pulsar_ray.format.arrow_payload import encode_rows
from pulsar_ray.format.payload import encode_batch
from pulsar_ray.lane.address import TcpAddress, UnixAddress
from pulsar_ray.lane.connection import LaneConnection
from pulsar_ray.lane.handshake import HelloFields
from pulsar_ray.model.message_id import MessageId
from pulsar_ray.session.packet import Packet
from pulsar_ray.session.requests import PROTOCOL_VERSION, Publish, encode_request
from pulsar_ray.testing.faults import DOWN, UP, LaneCutter
from pulsar_ray.testing.waiting import wait_until
from pulsar_ray.transport.cluster import AttachReply
from tests.conformance.broker import EARLIEST, WAIT_MS, Broker, numbers, receive, values
from tests.unit.format.corrupt_arrow import damaged, is_readable

Quiet = Callable[[Consumer], None]
LANES = pytest.mark.parametrize("transport", ["socket", "tcp"], indirect=True)


def flip(path: Path, offset: int) -> None:
    """Damage one byte of a file."""
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def segment(broker: Broker, topic: str) -> Path:
    server = broker.cluster.partition(topic).server
    assert server is not None
    return Path(server.calls.describe_log()["segments"][0][2])


def received_with_errors(consumer: Consumer, count: int) -> tuple[list[bytes], list[PulsarException]]:
    """What `count` calls of receive bring."""
    got: list[bytes] = []
    errors: list[PulsarException] = []
    for _ in range(count):
        try:
            got.append(consumer.receive(WAIT_MS).data())
        except (ChecksumError, InvalidMessage) as error:
            errors.append(error)
    return got, errors


# --- the disk --------------------------------------------------------------------------------------------


def test_publishing_stops_while_the_disk_is_low_and_reading_and_acks_go_on(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch, assert_quiet: Quiet
) -> None:
    usage = SimpleNamespace(total=1 << 40, used=0, free=1 << 39)
    monkeypatch.setattr(publish_gate, "shutil", SimpleNamespace(disk_usage=lambda _path: usage))
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", ack_receipt_enabled=True)
    for value in numbers(0, 3):
        producer.send(value)
    partition = broker.cluster.partition(topic).server
    assert partition is not None
    usage.free = 1000
    wait_until(lambda: partition.stats()["diskLow"], what="the low-water mark was noticed")
    with pytest.raises(DiskSpaceLow, match="1,000 bytes free, below its low-water mark of 21,990,232,555"):
        producer.send(b"refused")
    results: list[Any] = []
    producer.send_async(b"refused too", lambda result, _: results.append(result))
    producer.flush()
    assert results == [DiskSpaceLow("x").result]
    for message in receive(consumer, 3)[:2]:
        consumer.acknowledge(message)
    # What was refused has used up its place in the order: neither a cut nor a restart may wait for it.
    broker.cluster.cut_lanes(topic)
    usage.free = 1 << 39
    wait_until(lambda: not partition.stats()["diskLow"], what="there is room again")
    producer.send(b"after")
    broker.cluster.kill(topic)
    producer.send(b"and after")
    consumer.close()
    again = client.subscribe(topic, "s")
    assert values(again, 3) == [b"000002", b"after", b"and after"]
    assert_quiet(again)


@pytest.mark.parametrize(("restarted", "queue"), [(False, 1000), (True, 1000), (False, 1)])
def test_a_corrupt_entry_is_reported_with_its_place_and_the_others_arrive(
    broker: Broker, client: Client, restarted: bool, queue: int
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    subscription = client.subscribe(topic, "s")
    subscription.close()
    for value in numbers(0, 6):
        producer.send(b"payload-" + value)
    path = segment(broker, topic)
    place = path.read_bytes().index(b"payload-000003")
    flip(path, place)
    if restarted:
        broker.restart(kill=True)
        client = broker.client()
    consumer = client.subscribe(topic, "s", receiver_queue_size=queue)
    got, errors = received_with_errors(consumer, 6)
    assert got == [b"payload-" + value for value in numbers(0, 6) if value != b"000003"]
    (error,) = errors
    assert isinstance(error, CorruptData)
    assert path.name in error.text
    assert place - 300 < error.offset < place
    assert broker.unacked(topic, "s") == [6]


def test_a_truncated_segment_is_reported_and_what_is_left_arrives(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    client.subscribe(topic, "s").close()
    for value in numbers(0, 6):
        producer.send(b"payload-" + value)
    path = segment(broker, topic)
    place = path.read_bytes().index(b"payload-000004")
    broker.cluster.close()
    with open(path, "r+b") as file:
        file.truncate(place)
    broker.restart(kill=True)
    server = broker.cluster.partition(topic).server
    assert server is not None
    (corruption,) = server.stats()["corruptions"]
    assert path.name in corruption
    client = broker.client()
    consumer = client.subscribe(topic, "s")
    assert values(consumer, 4) == [b"payload-" + value for value in numbers(0, 4)]
    client.create_producer(topic).send(b"new")
    got, errors = received_with_errors(consumer, 1)
    while not got:
        more, new = received_with_errors(consumer, 1)
        got, errors = got + more, errors + new
    assert got == [b"new"]


def test_a_corrupt_cursor_is_a_typed_error_that_names_the_file(broker: Broker, client: Client) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for value in numbers(0, 6):
        producer.send(value)
    for message in receive(consumer, 6)[1:]:
        consumer.acknowledge(message)
    consumer.close()
    broker.cluster.close(kill=True)
    (log,) = segment_directory(broker, topic).glob("s/*/cursor-*")
    flip(log, 20)
    broker.restart(kill=True)
    with pytest.raises(CorruptData, match=log.name):
        broker.client(operation_timeout_seconds=5).subscribe(topic, "s")
    assert values(broker.client().subscribe(topic, "other", initial_position=EARLIEST), 6) == numbers(0, 6)


def test_a_corrupt_manifest_is_a_typed_error_that_names_the_file(broker: Broker, client: Client) -> None:
    topic, other = broker.topic(), broker.topic()
    client.create_producer(topic).send(b"x")
    broker.cluster.close(kill=True)
    (log,) = segment_directory(broker, topic).glob("manifest-*")
    flip(log, 20)
    broker.restart(kill=True)
    client = broker.client(operation_timeout_seconds=5)
    with pytest.raises(CorruptData, match=log.name):
        client.create_producer(topic)
    client.create_producer(other).send(b"unharmed")


def segment_directory(broker: Broker, topic: str) -> Path:
    (path,) = [
        path
        for path in (broker._directory / "p").iterdir()
        if any(topic.encode() in log.read_bytes() for log in path.glob("manifest-*"))
    ]
    return path


# --- what clients send -----------------------------------------------------------------------------------


def test_an_arrow_payload_with_a_valid_checksum_and_bad_offsets_harms_nobody(
    broker: Broker, client: Client
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    producer.send(b"before")
    payload, columns = encode_rows([b"a", b"", b"ccc"])
    bad = next(p for p in damaged(bytes(payload)) if len(p) == len(payload) and not is_readable(p, columns))

    def encode(incarnation: int, entry_seq: int, _name: str, first_id: int) -> list[Any]:
        return encode_batch(
            bad,
            columns,
            message_count=3,
            incarnation=incarnation,
            entry_seq=entry_seq,
            first_sequence_id=first_id,
            last_sequence_id=first_id + 2,
            publish_time_ms=1,
        )

    producer._partitions[0].queue.add_block(
        encode, entries=1, messages=3, size=len(bad), done=lambda *_outcome: None
    )
    producer.send(b"after")
    got, errors = received_with_errors(consumer, 3)
    assert got == [b"before", b"after"]
    (error,) = errors
    assert isinstance(error, InvalidMessage)


class Nothing:
    """A connection handler for what gets no answer."""

    def __init__(self) -> None:
        self.lost: list[PulsarException] = []

    def on_packets(self, connection: LaneConnection, packets: list[Packet]) -> None:
        pass

    def on_lost(self, connection: LaneConnection, error: PulsarException) -> None:
        self.lost.append(error)


def lane_address(reply: AttachReply, transport: str) -> UnixAddress | TcpAddress:
    if transport == "tcp":
        assert reply.tcp_address is not None
        return TcpAddress(*reply.tcp_address)
    assert reply.unix_path is not None
    return UnixAddress(reply.unix_path)


@LANES
def test_garbage_on_a_lane_ends_that_lane_alone(broker: Broker, client: Client, transport: str) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    reply = broker.cluster.attach(topic, "vandal", want_tcp=transport == "tcp", attempt=1, timeout_s=5)
    address = lane_address(reply, transport)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", secrets.token_bytes(400), b"\xa7" * 13):
        with address.new_socket() as sock:
            sock.settimeout(20)
            sock.connect(address.target())
            sock.sendall(garbage)
            while sock.recv(4096):
                pass
    hello = HelloFields(PROTOCOL_VERSION, reply.session_id, reply.token, reply.attachment)
    handler = Nothing()
    let_in = LaneConnection.connect(address, hello, handler)
    let_in.send([b"\xff" * 64])
    wait_until(lambda: handler.lost, what="the lane was closed")
    assert isinstance(handler.lost[0], ProtocolError)
    producer.send(b"unharmed")
    assert broker.stored(topic) == [b"unharmed"]


@LANES
def test_a_publish_packet_without_blocks_ends_its_lane_alone(
    broker: Broker, client: Client, transport: str
) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    producer.send(b"first")
    for body in (b"x" * 100, secrets.token_bytes(5000)):
        partition = producer._partitions[0]
        partition.link.send(encode_request(Publish(partition.producer_id), [body]))
        producer.send(b"next")
    assert broker.stored(topic) == [b"first", b"next", b"next"]


@LANES
def test_a_wrong_token_or_an_old_attachment_is_not_let_in(broker: Broker, transport: str) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic)
    reply = broker.cluster.attach(topic, "guesser", want_tcp=transport == "tcp", attempt=1, timeout_s=5)
    address = lane_address(reply, transport)
    right = HelloFields(PROTOCOL_VERSION, reply.session_id, reply.token, reply.attachment)
    for wrong in (
        right._replace(token=secrets.token_bytes(32)),
        right._replace(session_id=reply.session_id + 1),
        right._replace(attachment_number=reply.attachment - 1),
    ):
        with pytest.raises(SessionLost, match="attach again"):
            LaneConnection.connect(address, wrong, Nothing())
    LaneConnection.connect(address, right, Nothing()).close()


def test_the_tunnel_takes_no_wrong_token(broker: Broker) -> None:
    topic = broker.topic()
    broker.client().create_producer(topic)
    reply = broker.cluster.attach(topic, "guesser", want_tcp=False, attempt=1, timeout_s=5)
    actor = broker.cluster.partition(topic)
    wrong = secrets.token_bytes(32)
    unpacked: list[bytes] = []

    def unpack() -> list[tuple[int, bytes]]:
        unpacked.append(wrong)
        return []

    call = actor.submit(lambda: actor.host.exchange(reply.session_id, reply.attachment, wrong, 0, unpack))
    with pytest.raises(SessionLost):
        actor.result(call, 5)
    assert unpacked == []


def remember(confirmed: list[bytes], value: bytes) -> Callable[[Any, MessageId], None]:
    return lambda _result, _message_id: confirmed.append(value)


@pytest.mark.parametrize("transport", ["socket"], indirect=True)
@pytest.mark.parametrize("direction", [UP, DOWN])
def test_lanes_cut_in_the_middle_of_packets_lose_nothing(
    broker: Broker, client: Client, direction: str, tmp_path: Path
) -> None:
    topic = broker.topic()
    cutters: dict[str, LaneCutter] = {}

    def behind_a_cutter(reply: AttachReply) -> AttachReply:
        assert reply.unix_path is not None
        if reply.unix_path not in cutters:
            cutters[reply.unix_path] = LaneCutter(UnixAddress(reply.unix_path), tmp_path)
        return dataclasses.replace(reply, unix_path=cutters[reply.unix_path].address.path)

    broker.cluster.edit_attach = behind_a_cutter
    producer = client.create_producer(topic, max_pending_messages=0)
    consumer = client.subscribe(topic, "s", receiver_queue_size=20)
    confirmed: list[bytes] = []
    got: list[bytes] = []
    for turn in range(20):
        for value in numbers(turn * 10, turn * 10 + 10):
            producer.send_async(value, remember(confirmed, value))
        for cutter in list(cutters.values()):
            cutter.cut_after(direction, 37 * turn + 20)
        while len(got) < 10 * turn + 10:
            try:
                message = consumer.receive(300)
            except Timeout:
                # Some connections do not get far enough to be of use before they are cut again.
                for cutter in list(cutters.values()):
                    cutter.heal()
                continue
            got.append(message.data())
            consumer.acknowledge(message)
    for cutter in list(cutters.values()):
        cutter.heal()
    producer.flush()
    assert sum(cutter.connections for cutter in cutters.values()) > 20
    assert confirmed == numbers(0, 200)
    assert got == numbers(0, 200)
    assert broker.stored(topic) == numbers(0, 200)
    client.close()
    broker.cluster.close()
    for cutter in cutters.values():
        cutter.close()


@LANES
def test_half_a_hello_and_silence_keeps_nobody_out(broker: Broker, client: Client, transport: str) -> None:
    topic = broker.topic()
    producer = client.create_producer(topic)
    reply = broker.cluster.attach(topic, "silent", want_tcp=transport == "tcp", attempt=1, timeout_s=5)
    address = lane_address(reply, transport)
    silent: list[socket.socket] = []
    for _ in range(50):
        sock = address.new_socket()
        sock.connect(address.target())
        sock.sendall(b"\xa7\x01")
        silent.append(sock)
    producer.send(b"unharmed")
    for sock in silent:
        sock.close()
