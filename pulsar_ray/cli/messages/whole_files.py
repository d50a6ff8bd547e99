"""Files that are sent and received whole, as one message each, however large."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pulsar_ray.cli.console import Interrupt, write_out
from pulsar_ray.cli.watching.progress import Unit, progress
from pulsar_ray.client.producer.send_callbacks import SyncSend
from pulsar_ray.errors import MessageTooBig
from pulsar_ray.format.compression import MAX_CHUNKED_LENGTH
from pulsar_ray.ledger.disk import SYSTEM_DISK
from pulsar_ray.model.message_id import MessageId

if TYPE_CHECKING:
    from pulsar_ray.client.producer.producer import Producer

_STEP_S = 0.1


class WholeFiles:
    """Sends files one after the other, with a bar on a terminal."""

    def __init__(self, producer: Producer, names: tuple[str, ...], **fields: Any) -> None:
        self._producer = producer
        self._names = names
        self._fields = fields
        self.sent: list[tuple[str, int, MessageId]] = []
        """Name, size and id of each file that is stored."""

    def send(self, interrupt: Interrupt) -> None:
        """Send all of them. Raises MessageTooBig, and what sending raises; the former ones are stored."""
        for name in self._names:
            interrupt.check()
            self._send_one(name, interrupt)

    def _send_one(self, name: str, interrupt: Interrupt) -> None:
        interrupt.is_waiting = True
        content = _content(name)
        interrupt.is_waiting = False
        receipt = SyncSend()
        with progress(_shown(name), len(content), Unit.BYTES) as shown:
            self._producer.send_async(content, receipt, **self._fields)
            while not receipt.wait(_STEP_S):
                interrupt.check()
                shown.reached(len(content) - min(self._producer.pending_bytes(), len(content)))
        if receipt.error is not None:
            raise receipt.error
        assert receipt.message_id is not None
        self.sent.append((_shown(name), len(content), receipt.message_id))


def write_whole(content: bytes, name: str) -> None:
    """Write a message into a new file, whole or not at all.

    "-" is standard output.
    """
    if name == "-":
        write_out(content)
        return
    path = Path(name)
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with staged.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # it is acknowledged next, and will not come again
        os.link(staged, path)  # fails where such a file has come to be meanwhile
    finally:
        staged.unlink(missing_ok=True)
    SYSTEM_DISK.fsync_dir(path.parent)  # else a power cut could take its name


def _content(name: str) -> bytes:
    if name != "-" and (length := os.stat(name).st_size) > MAX_CHUNKED_LENGTH:
        raise MessageTooBig(
            f"{name} has {length} bytes, a message at most {MAX_CHUNKED_LENGTH}: split it, or store it "
            "elsewhere and send a reference"
        )
    with click.open_file(name, "rb") as stream:
        content: bytes = stream.read()
    return content


def _shown(name: str) -> str:
    return "standard input" if name == "-" else name
