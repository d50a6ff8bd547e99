"""One message of up to 1 GiB in chunks: the disk, pread and a copy, and the memory of the broker."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.measuring.environment import Broker, Environment
from benchmarks.measuring.floors import DurableFile
from benchmarks.measuring.measure import Slices
from benchmarks.measuring.results import Row
from pulsar_ray.model.message_id import MessageId

MESSAGE_BYTES = 1 << 30
PIECE_BYTES = 5 << 20
"""The size of a chunk, and of the floors' writes and reads."""
DISK_CAP_BYTES_PER_S = 600e6
FLOOR_FILE = "written"
TIMEOUT_MS = 600_000


def run(env: Environment) -> list[Row]:
    """Ours and the floor take turns, with messages that no cache of the client holds."""
    size = max(4 * PIECE_BYTES, int(MESSAGE_BYTES * env.scale))
    rounds = 2
    with env.broker() as broker:
        topic = broker.topic()
        broker.client.subscribe(topic, "bench").close()
        before = _peaks(broker, topic)
        rows = [_produced(broker, topic, size, rounds), _consumed(broker, topic, size, rounds)]
        after = _peaks(broker, topic)
    grown = {name: after[name] - before[name] for name in after}
    return [
        *rows,
        Row(
            f"the broker's memory at its peak, message of {size >> 20} MiB",
            ", ".join(f"{name} {peak >> 20} MiB" for name, peak in after.items()),
            "before " + ", ".join(f"{name} {peak >> 20} MiB" for name, peak in before.items()),
            max(grown.values()) / size,
            note="ratio: growth of the larger one / message",
        ),
    ]


def _produced(broker: Broker, topic: str, size: int, rounds: int) -> Row:
    producer = broker.client.create_producer(topic, chunking_enabled=True, send_timeout_millis=TIMEOUT_MS)
    value = os.urandom(size)
    file = DurableFile(broker.directory / FLOOR_FILE)

    def append() -> None:
        # The file keeps what was written, as the log does. Written anew each time, its pages would be those
        # that it has just given back, which may cost a tenth of pages that the system never had.
        for start in range(0, size, PIECE_BYTES):
            file.append(memoryview(value)[start : start + PIECE_BYTES])

    works = {"ours": (size, lambda: producer.send(value)), "disk": (size, append)}
    slices = Slices(works, broker.meter(topic), rounds)
    file.close()
    producer.close()
    return Row(
        f"send in chunks, one message of {size >> 20} MiB",
        slices.text("ours"),
        f"append + fdatasync of 5 MiB {slices.text('disk')}",
        slices.ratio("disk", DISK_CAP_BYTES_PER_S),
        0.6,
        cpu_us=slices.cpu_us(size >> 20),
        note="floor capped at 600 MB/s; CPU per MiB",
    )


def _consumed(broker: Broker, topic: str, size: int, rounds: int) -> Row:
    consumer = broker.client.subscribe(topic, "bench", receiver_queue_size=1)
    path = broker.directory / FLOOR_FILE

    def receive() -> None:
        message = consumer.receive(TIMEOUT_MS)
        if len(message.data()) != size:
            raise RuntimeError(f"{len(message.data())} of {size} bytes came")
        consumer.seek(MessageId.earliest)

    works = {"ours": (size, receive), "pread": (size, lambda: _read(path, size))}
    slices = Slices(works, broker.meter(topic, "bench"), rounds)
    consumer.close()
    return Row(
        f"receive it, {size >> 20} MiB",
        slices.text("ours"),
        f"pread + one copy {slices.text('pread')}",
        slices.ratio("pread"),
        0.5,
        cpu_us=slices.cpu_us(size >> 20),
        note="CPU per MiB",
    )


def _read(path: Path, size: int) -> bytes:
    into = bytearray(size)
    with path.open("rb", buffering=0) as file:
        for start in range(0, size, PIECE_BYTES):
            os.preadv(file.fileno(), [memoryview(into)[start : start + PIECE_BYTES]], start)
    return bytes(into)


def _peaks(broker: Broker, topic: str) -> dict[str, int]:
    return {name: _peak_bytes(pid) for name, pid in broker.pids(topic, "bench").items()}


def _peak_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) << 10
