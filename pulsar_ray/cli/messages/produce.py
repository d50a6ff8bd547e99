"""`pulsar-ray produce`: lines to messages."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import click

from pulsar_ray.cli.console import Interrupt, interrupted, rate, say, size, warn
from pulsar_ray.cli.messages.whole_files import WholeFiles
from pulsar_ray.cli.parameters import duration, time_ms
from pulsar_ray.cli.target import WAITING, Target, pass_target
from pulsar_ray.cli.watching.progress import ShownProgress, Unit, progress
from pulsar_ray.client.options.schema import BytesSchema, Schema
from pulsar_ray.client.producer.send_callbacks import ErrorCallback
from pulsar_ray.errors import InvalidMessage, PulsarException
from pulsar_ray.model.enums import CompressionType
from pulsar_ray.model.message_id import MessageId

COMPRESSIONS = {kind.name.lower(): kind for kind in CompressionType}
_PROGRESS_LINES = 1000

compression_option = click.option(
    "--compression",
    type=click.Choice(sorted(COMPRESSIONS)),
    default="none",
    show_default=True,
    help="How batches are stored; consumers need no setting.",
)
KeyOf = Callable[[bytes], tuple[str | None, bytes]]
"""From a line to its key, if it has one, and the value to send."""


@click.command()
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--key-separator", metavar="TEXT", help="What stands before it in a line is the key.")
@click.option(
    "--key-regex",
    metavar="REGEX",
    help="Its first group (or all it matches) is the key; the line is sent as it is.",
)
@compression_option
@click.option("--batching/--no-batching", default=True, show_default=True, help="Store lines in batches.")
@click.option("--name", help="The producer's name.  [default: made up]")
@click.option(
    "--whole-file",
    is_flag=True,
    help="Send each of FILES as one message, in chunks if it is large: up to 2 GB.",
)
@click.option("--typed", is_flag=True, help="Lines are JSON, of the schema that the topic has.")
@click.option(
    "--deliver-after",
    callback=duration,
    metavar="TIME",
    help="Deliver each line so much later: 30s, 90m, 2d.",
)
@click.option(
    "--deliver-at",
    callback=time_ms,
    metavar="TIME",
    help="Deliver at 2030-01-31T08:00:00 (local, or with a zone), or at so many ms since 1970.",
)
@pass_target
def produce(
    target: Target,
    topic: str,
    files: tuple[str, ...],
    key_separator: str | None,
    key_regex: str | None,
    compression: str,
    batching: bool,
    name: str | None,
    whole_file: bool,
    typed: bool,
    deliver_after: timedelta | None,
    deliver_at: int | None,
) -> None:
    """Send every line of FILES, or of standard input, to TOPIC.

    A line is confirmed once it is stored durably; the count of those is printed at the end, also after Ctrl-C
    and after an error. Shared and Key_Shared subscriptions deliver delayed lines when they are due, others at
    once.

    \b
    Examples:
      pulsar-ray produce orders < orders.txt
      tail -f app.log | pulsar-ray produce logs --key-regex '"user": "(\\w+)"'
      pulsar-ray produce orders a.csv b.csv --key-separator , --compression zstd
      echo wake up | pulsar-ray produce reminders --deliver-after 90m
      pulsar-ray produce scans --whole-file image.tiff
      echo '{"item": "book", "count": 1}' | pulsar-ray produce orders --typed
    """
    if deliver_after is not None and deliver_at is not None:
        raise click.UsageError("give --deliver-after or --deliver-at, not both")
    if whole_file:
        _check_whole(key_separator, key_regex, typed)
        times = {"deliver_at": deliver_at, "deliver_after": deliver_after}
        _produce_whole(target, topic, files or ("-",), name, COMPRESSIONS[compression], times)
        return
    key_of = key_rule(key_regex, key_separator)
    receipts = Receipts()
    source = _Source(files or ("-",))
    with target.client() as client:
        with progress(WAITING):
            producer = client.create_producer(
                topic,
                producer_name=name,
                compression_type=COMPRESSIONS[compression],
                batching_enabled=batching,
                block_if_queue_full=True,
                max_pending_messages=10_000,
                schema=_schema_of(target, topic) if typed else BytesSchema(),
            )
        _warn_if_nothing_keeps(target, producer.topic(), "these lines")
        try:
            with (
                Interrupt() as interrupt,
                progress("sending", source.total_bytes(), Unit.BYTES) as shown,
            ):
                for line in source.lines(interrupt, lambda sent: _show(shown, sent, receipts)):
                    key, text = key_of(without_newline(line))
                    receipts.sent += 1
                    try:
                        producer.send_async(
                            json.loads(text) if typed else text,
                            receipts,
                            partition_key=key,
                            deliver_at=deliver_at,
                            deliver_after=deliver_after,
                        )
                    except (ValueError, TypeError, RecursionError) as error:
                        if not typed:
                            raise
                        receipts.sent -= 1
                        raise InvalidMessage(f"{source.place} has no value of the schema: {error}") from None
                    if receipts.error is not None:
                        break
                shown.reached(source.bytes_read, "waiting for receipts")
                producer.flush()
        except KeyboardInterrupt:
            producer.flush()
            interrupted(f"stopped at {source.place}: {_summary(receipts)}")
        except OSError:
            producer.flush()
            say(f"stopped at {source.place}: {_summary(receipts)}")
            raise
        except PulsarException:
            say(f"stopped at {source.place}: {_summary(receipts)}")
            raise
    if receipts.error is not None:
        say(f"stopped at {source.place}: {_summary(receipts)}")
        raise receipts.error
    say(f"{_summary(receipts)} ({rate(receipts.confirmed, receipts.seconds)})")


def _check_whole(key_separator: str | None, key_regex: str | None, typed: bool) -> None:
    if key_separator is not None or key_regex is not None:
        raise click.UsageError("--whole-file sends no lines: leave --key-separator and --key-regex out")
    if typed:
        raise click.UsageError("--whole-file sends bytes: leave --typed out")


def _schema_of(target: Target, topic: str) -> Schema:
    """The schema that a topic has, for values in JSON."""
    from pulsar_ray.schema.plain_values import plain_schema  # noqa: PLC0415 - it loads the client

    with target.asked() as admin:
        return plain_schema(admin.schemas.get(topic).schema)


def _produce_whole(
    target: Target,
    topic: str,
    files: tuple[str, ...],
    name: str | None,
    compression: CompressionType,
    times: dict[str, Any],
) -> None:
    with target.client() as client:
        with progress(WAITING):
            producer = client.create_producer(
                topic,
                producer_name=name,
                compression_type=compression,
                batching_enabled=False,
                chunking_enabled=True,
                block_if_queue_full=True,
            )
        _warn_if_nothing_keeps(target, producer.topic(), "these files")
        whole = WholeFiles(producer, files, **times)
        try:
            with Interrupt() as interrupt:
                whole.send(interrupt)
        except KeyboardInterrupt:
            interrupted(f"stopped: {len(whole.sent)} of {len(files)} files are stored")
        finally:
            for file, length, message_id in whole.sent:
                say(f"{file}: {size(length)} stored as {message_id}")


def _summary(receipts: Receipts) -> str:
    if receipts.confirmed == receipts.sent:
        return f"{receipts.confirmed:,} lines sent, all confirmed"
    return f"{receipts.confirmed:,} of {receipts.sent:,} lines sent were confirmed"


def _warn_if_nothing_keeps(target: Target, topic: str, what: str) -> None:
    with target.asked() as admin:
        retention = admin.topics.policies.get(topic, "retention").value
        if retention["retention_time_in_minutes"] and retention["retention_size_in_mb"]:
            return
        subscriptions = admin.topics.stats(topic)["subscriptions"].values()
    if not any(subscription["isDurable"] for subscription in subscriptions):
        warn(
            f"{topic} has no subscription and no retention, so nothing keeps {what}. "
            f"Create one first: pulsar-ray consume {shlex.quote(topic)} -s NAME --no-follow"
        )


class _Source:
    """The lines of several files in turn, and where it is."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._name = files[0]
        self._line = 0
        self.bytes_read = 0
        self._lines = 0

    @property
    def place(self) -> str:
        """The file and line that was read last."""
        return f"{'standard input' if self._name == '-' else self._name}, line {self._line}"

    def lines(self, interrupt: Interrupt, tell: Callable[[int], None]) -> Iterator[bytes]:
        """All lines with their newlines; between two of them Ctrl-C ends it.

        `tell` is called once in a while with the number of bytes up to there.
        """
        for name in self._files:
            self._name, self._line = name, 0
            stream: IO[bytes] = click.open_file(name, "rb")
            with stream:
                while line := self._next_line(stream, interrupt):
                    self._line += 1
                    self._lines += 1
                    self.bytes_read += len(line)
                    if self._lines % _PROGRESS_LINES == 0:
                        tell(self.bytes_read)
                    yield line

    def _next_line(self, stream: IO[bytes], interrupt: Interrupt) -> bytes:
        interrupt.check()
        interrupt.is_waiting = True
        line = stream.readline()
        interrupt.is_waiting = False
        return line

    def total_bytes(self) -> int | None:
        """How many bytes there will be; None if that cannot be known."""
        if all(name != "-" and Path(name).is_file() for name in self._files):
            return sum(os.stat(name).st_size for name in self._files)
        return None


def _show(shown: ShownProgress, sent_bytes: int, receipts: Receipts) -> None:
    shown.reached(sent_bytes, f"{receipts.confirmed:,} confirmed")


class Receipts(ErrorCallback):
    """The callback of all messages of one producer, whose I/O thread alone calls it."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self.error: PulsarException | None = None
        """The first one."""
        self._started = time.perf_counter()

    def __call__(self, result: Any, message_id: MessageId) -> None:
        self.confirmed += 1

    def failed(self, error: PulsarException) -> None:
        if self.error is None:
            self.error = error

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.perf_counter() - self._started


def key_rule(regex: str | None, separator: str | None) -> KeyOf:
    """Take keys out of lines.

    Raises UsageError for a bad expression, or both rules at once.
    """
    if regex is not None and separator is not None:
        raise click.UsageError("give --key-regex or --key-separator, not both")
    if separator is not None:
        return _by_separator(separator.encode())
    if regex is not None:
        try:
            return _by_regex(re.compile(regex.encode()))
        except re.error as error:
            raise click.UsageError(f"--key-regex {regex!r} is no regular expression: {error}") from None
    return _without_key


def _without_key(line: bytes) -> tuple[str | None, bytes]:
    return None, line


def _by_separator(separator: bytes) -> KeyOf:
    def split(line: bytes) -> tuple[str | None, bytes]:
        key, found, value = line.partition(separator)
        return (_text(key), value) if found else (None, line)

    return split


def _by_regex(pattern: re.Pattern[bytes]) -> KeyOf:
    def search(line: bytes) -> tuple[str | None, bytes]:
        match = pattern.search(line)
        if match is None:
            return None, line
        # A group that took no part in the match is None.
        return _text(match[1] if pattern.groups else match[0]), line

    return search


def _text(key: bytes | None) -> str | None:
    return key.decode("utf-8", "replace") if key else None


def without_newline(line: bytes) -> bytes:
    """The line without the newline, or carriage return and newline, at its end."""
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(b"\n") else line
