"""The demo from its fresh data directory to its last comparison."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import ray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from pulsar_ray.admin.admin import Admin
from pulsar_ray.client.client import Client
from pulsar_ray.errors import PulsarException
from pulsar_ray.launch.embedded import read_record, stop_embedded
from pulsar_ray_spark.demo.counting import Counters
from pulsar_ray_spark.demo.environment import java_on_path, output_into, raise_at_sigterm, signals_raise
from pulsar_ray_spark.demo.publishing import Killing, Publishing
from pulsar_ray_spark.demo.spark_side import SparkCount
from pulsar_ray_spark.demo.text import Tally, TextFile

PARTITIONS = 4
IDLE_SECONDS = 20.0
"""Should this process be killed, its broker ends by itself so soon."""
STALL_S = 60.0
_POLL_S = 0.1
_SHOWN_DIFFERENCES = 10
TIMEOUT_MS = 30_000


class DemoFailed(PulsarException):
    """The counts do not agree, or lines did not arrive."""


class Demo:
    """Sends files through a topic to consumers and Spark, and compares.

    Without `data_dir` everything happens in a temporary directory that is removed at the end. All that the
    demo started has ended when `run` returns or raises.
    """

    def __init__(
        self,
        files: Sequence[TextFile],
        console: Console,
        data_dir: Path | None = None,
        waiting: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._files = files
        self._console = console
        self._waiting = waiting
        self._given_directory = data_dir
        self._topic = f"persistent://public/default/demo-lines-{secrets.token_hex(3)}"

    def run(self) -> None:
        """Do it all.

        Raises DemoFailed if anything differs, JavaNotFound, or what is wrong with the directory.
        """
        started = time.perf_counter()
        with signals_raise() as undo, java_on_path():
            data_dir = self._given_directory or self._temporary_directory(undo)
            client = self._connect(data_dir, undo)
            self._say(f"topic      {self._topic}, {PARTITIONS} partitions, held by subscription 'spark'")
            published, consumed = self._stream(client, undo)
            in_spark, written = self._aggregate(client, data_dir, undo)
            self._conclude(published.expected, consumed, in_spark, written)
            self._say(f"whole demo {time.perf_counter() - started:.1f} s")
        if self._given_directory is not None:
            self._say(f"the data stays in {data_dir}")

    def _say(self, text: str) -> None:
        self._console.print(text)

    # --- setting up ----------------------------------------------------------------------------------------

    def _temporary_directory(self, undo: ExitStack) -> Path:
        path = Path(tempfile.mkdtemp(prefix="pulsar-ray-demo-"))
        undo.callback(shutil.rmtree, path, ignore_errors=True)
        return path

    def _connect(self, data_dir: Path, undo: ExitStack) -> Client:
        """A broker of our own with the topic in it."""
        started = time.perf_counter()
        self._say(f"data       {data_dir}")
        if read_record(data_dir) is None:
            undo.callback(stop_embedded, data_dir)
        undo.callback(ray.shutdown)
        client = Client("local", data_dir=data_dir)
        undo.callback(_close, client)
        self._admin = undo.enter_context(
            Admin("local", data_dir=data_dir, embedded_idle_shutdown_seconds=IDLE_SECONDS)
        )
        with self._waiting("starting Ray and the broker"):
            self._admin.topics.create_partitioned_topic(self._topic, PARTITIONS)
        raise_at_sigterm()
        # The subscription keeps every line for Spark, from the first one on.
        self._admin.topics.create_subscription(self._topic, "spark")
        record = read_record(data_dir)
        self._say(f"broker     process {record.pid if record else '?'}, up in {_since(started)}")
        if record is not None and record.dashboard_url:
            self._say(f"dashboard  {record.dashboard_url}")
        return client

    # --- streaming -----------------------------------------------------------------------------------------

    def _stream(self, client: Client, undo: ExitStack) -> tuple[Publishing, dict[str, Tally]]:
        """Publish and count at once, while one partition's actor is killed."""
        counters = Counters(self._topic, PARTITIONS)
        undo.callback(counters.stop)
        producer = client.create_producer(self._topic)
        publishing = Publishing(producer, self._files)
        killings: list[Killing] = []
        started = time.perf_counter()
        thread = _Raising(lambda: publishing.run(lambda: killings.append(Killing(self._admin, self._topic))))
        thread.start()
        self._follow(thread, publishing, counters)
        seconds = time.perf_counter() - started
        consumed = counters.finish()
        producer.close()
        rate = publishing.confirmed / publishing.seconds
        self._say(f"published  {publishing.confirmed:,} lines, all durable, {rate:,.0f} lines/s")
        counted = sum(tally.lines for tally in consumed.values())
        self._say(f"consumed   {counted:,} lines meanwhile, {counted / seconds:,.0f} lines/s")
        for killing in killings:
            self._tell(killing)
        return publishing, consumed

    def _follow(self, thread: _Raising, publishing: Publishing, counters: Counters) -> None:
        """Until every line was counted; raises DemoFailed when nothing has moved for too long."""
        columns = (
            TextColumn("{task.description:10}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            sending = progress.add_task("publishing", total=1.0)
            counting = progress.add_task("consuming", total=1.0)
            moved_at, last = time.monotonic(), -1
            while (counted := counters.progress()) < publishing.sent or thread.is_alive():
                thread.check()
                progress.update(sending, completed=publishing.share)
                progress.update(counting, completed=publishing.share * counted / max(1, publishing.sent))
                moved = counted + publishing.confirmed
                if moved != last:
                    moved_at, last = time.monotonic(), moved
                elif time.monotonic() - moved_at > STALL_S:
                    raise DemoFailed(
                        f"nothing has moved for {STALL_S:.0f} s: {publishing.sent:,} lines sent, "
                        f"{publishing.confirmed:,} confirmed, {counted:,} consumed"
                    )
                time.sleep(_POLL_S)
        thread.check()

    def _tell(self, killing: Killing) -> None:
        killing.wait()
        index = killing.partition.rsplit("-", 1)[-1]
        if killing.seconds is None:
            raise DemoFailed(
                f"partition {index} did not come back after its process {killing.pid} was killed"
            )
        self._say(
            f"killed     partition {index} half way (SIGKILL to process {killing.pid}); "
            f"process {killing.new_pid} served {killing.seconds:.1f} s later"
        )

    # --- Spark, and the end --------------------------------------------------------------------------------

    def _aggregate(
        self, client: Client, data_dir: Path, undo: ExitStack
    ) -> tuple[dict[str, Tally], dict[str, int]]:
        """Count in one read, and in a stream whose counts are written back."""
        self._say("Spark      starting ...")
        log = data_dir / "run" / "spark.log"
        with output_into(log):
            spark = SparkCount()
            undo.callback(_stop, spark, log)
            tallies = spark.tallies(self._topic)
            counted = WrittenCounts(client, f"{self._topic}-by-module")
            batches = spark.stream_back(self._topic, counted.topic)
        lines = sum(tally.lines for tally in tallies.values())
        self._say(
            f"Spark      {lines:,} lines read and grouped, {lines / spark.seconds:,.0f} lines/s "
            f"(started in {spark.start_seconds:.1f} s)"
        )
        written = counted.take()
        streamed = sum(written.values())
        self._say(
            f"streamed   {streamed:,} lines in {batches} batches, {streamed / spark.stream_seconds:,.0f} "
            f"lines/s; Spark wrote {counted.messages:,} counts back to a topic"
        )
        return tallies, written

    def _conclude(
        self,
        expected: dict[str, Tally],
        consumed: dict[str, Tally],
        in_spark: dict[str, Tally],
        written: dict[str, int],
    ) -> None:
        self._console.print(table(expected, consumed, in_spark))
        wrong = differences(expected, consumed, in_spark) + count_differences(expected, written)
        for difference in wrong[:_SHOWN_DIFFERENCES]:
            self._console.print(difference, style="red")
        if wrong:
            raise DemoFailed(f"{len(wrong)} differences between the files and what arrived")
        lines = sum(tally.lines for tally in expected.values())
        self._console.print(
            f"every one of {lines:,} lines of {len(expected):,} modules arrived once and unchanged, in order "
            "per module at the consumers, in Spark, and in the counts that Spark's stream wrote back",
            style="green",
        )


class _Raising(threading.Thread):
    """A thread whose error is raised where `check` is called."""

    def __init__(self, work: object) -> None:
        super().__init__(name="publish", daemon=True)
        self._work = work
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._error = error

    def check(self) -> None:
        """Raise what ended the thread, if an error did."""
        if self._error is not None:
            raise self._error


def _close(client: Client) -> None:
    # After an error or Ctrl-C nothing is waited for; producers are closed by then if all went well.
    with contextlib.suppress(PulsarException):
        client.shutdown()


def _stop(spark: SparkCount, log: Path) -> None:
    with output_into(log):
        spark.stop()


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.1f} s"


class WrittenCounts:
    """Subscribes to a topic of counts by module, and adds them up."""

    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self.messages = 0
        self._consumer = client.subscribe(topic, "add-up")

    def take(self) -> dict[str, int]:
        """The sum of each module's counts, of all that are stored by now."""
        sums: dict[str, int] = defaultdict(int)
        while self._consumer.has_message_available():
            message = self._consumer.receive(timeout_millis=TIMEOUT_MS)
            sums[message.partition_key()] += int(message.data())
            self._consumer.acknowledge(message)
            self.messages += 1
        self._consumer.close()
        return dict(sums)


_SHOWN = 8


def differences(
    files: Mapping[str, Tally], consumed: Mapping[str, Tally], spark: Mapping[str, Tally]
) -> list[str]:
    """Name each difference, a line for each module and side.

    Empty if all is well.
    """
    found = []
    for module in sorted(files.keys() | consumed.keys() | spark.keys()):
        of_file = files.get(module, Tally())
        of_consumer = consumed.get(module, Tally())
        of_spark = spark.get(module, Tally())
        if of_consumer.lines != of_file.lines:
            found.append(
                f"{module}: {of_file.lines} lines in the file, consumers counted {of_consumer.lines}"
            )
        elif of_consumer.text_crc != of_file.text_crc:
            found.append(f"{module}: consumers got its lines out of order, or changed")
        if of_spark.lines != of_file.lines:
            found.append(f"{module}: {of_file.lines} lines in the file, Spark counted {of_spark.lines}")
        elif of_spark.line_crcs != of_file.line_crcs:
            found.append(f"{module}: Spark got changed lines")
    return found


def count_differences(files: Mapping[str, Tally], written: Mapping[str, int]) -> list[str]:
    """Name each module whose count that was written back is wrong."""
    of_files = {module: tally.lines for module, tally in files.items() if tally.lines}
    return [
        f"{module}: {of_files.get(module, 0)} lines in the file, {written.get(module, 0)} written back"
        for module in sorted(of_files.keys() | written.keys())
        if of_files.get(module, 0) != written.get(module, 0)
    ]


def table(files: Mapping[str, Tally], consumed: Mapping[str, Tally], spark: Mapping[str, Tally]) -> Table:
    """The modules with the most lines, and the sums."""
    shown = Table("module", "file", "consumers", "Spark", title="lines by module")
    for column in shown.columns[1:]:
        column.justify = "right"
    largest = sorted(files, key=lambda module: (-files[module].lines, module))
    for module in largest[:_SHOWN]:
        counts = (side.get(module, Tally()).lines for side in (files, consumed, spark))
        shown.add_row(module, *(f"{count:,}" for count in counts))
    if len(largest) > _SHOWN:
        shown.add_row(f"... {len(largest) - _SHOWN:,} more", "", "", "")
    shown.add_section()
    sums = (sum(tally.lines for tally in side.values()) for side in (files, consumed, spark))
    shown.add_row("all", *(f"{count:,}" for count in sums))
    return shown
