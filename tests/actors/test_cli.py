"""The command line with real processes: what only they can show, beside the unit tests with stand-ins."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from pulsar_ray.launch.embedded import read_record, stop_embedded
from pulsar_ray.launch.rays.joined_ray import knows_tokens
from tests.actors.command_process import CommandProcess, Done

# Several brokers are started one after the other, each by a Ray of its own.
pytestmark = pytest.mark.timeout(600)

TIMEOUT_S = 150.0
_topics = itertools.count(1)


@dataclass(frozen=True)
class CommandLine:
    """Runs commands on one data directory."""

    data_dir: Path

    def options(self) -> list[str]:
        return ["--service-url", "local", "--data-dir", str(self.data_dir)]

    def arguments(self, *arguments: str) -> list[str]:
        command = [sys.executable, "-c", "from pulsar_ray.cli.main import main; main()"]
        return [*command, *self.options(), *arguments]

    def run(self, *arguments: str, text: str = "", expected: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.arguments(*arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == expected, done
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.arguments(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CommandLine, list[str]]]:
    """`pulsar-ray standalone` in the foreground, and the lines it printed once it served."""
    command_line = CommandLine(tmp_path_factory.mktemp("cli") / "data")
    process = command_line.start("standalone")
    assert process.stdout is not None
    printed = [process.stdout.readline().rstrip() for _ in range(6 if knows_tokens() else 5)]
    if not printed[-1]:
        # Its output has ended, and so will it.
        _, said = process.communicate(timeout=TIMEOUT_S)
        pytest.fail(f"standalone ended with {process.returncode} behind {printed}: {said}")
    yield command_line, printed
    # What `stop` does to it is one of the tests' matters; afterwards it must be gone in any case.
    stop_embedded(command_line.data_dir)
    process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def command_line(broker: tuple[CommandLine, list[str]]) -> CommandLine:
    return broker[0]


@dataclass(frozen=True)
class QuickCommandLine:
    """Runs commands on one data directory in one process.

    For what does not depend on how a process begins and ends, since each would load Ray.
    """

    options: list[str]
    process: CommandProcess

    def run(self, *arguments: str, text: str = "", expected: int = 0) -> Done:
        done = self.process.run(*self.options, *arguments, text=text)
        assert done.returncode == expected, done
        return done


@pytest.fixture
def commands(command_line: CommandLine) -> Iterator[QuickCommandLine]:
    with CommandProcess() as process:
        yield QuickCommandLine(command_line.options(), process)


@pytest.fixture
def topic() -> str:
    """A topic that no test has used before, this one's first try included."""
    return f"cli-{next(_topics)}"


def test_standalone_says_where_it_stores_and_how_to_connect(broker: tuple[CommandLine, list[str]]) -> None:
    command_line, printed = broker
    record = read_record(command_line.data_dir)
    assert record is not None
    for line, text in zip(
        printed,
        (
            str(command_line.data_dir),
            'pulsar_ray.Client("local"',
            "--data-dir",
            record.address,
            "embedded_dashboard",
            *(["token-"] if knows_tokens() else []),
        ),
        strict=True,
    ):
        assert text in line
    status = command_line.run("status")
    assert f"process {record.pid}" in status.stdout
    assert printed[0] in status.stdout
    # A second one on the same directory is refused before it starts anything.
    assert "process" in command_line.run("standalone", expected=1).stderr


def test_an_embedded_broker_listens_to_this_machine_alone_and_asks_for_a_token(
    command_line: CommandLine,
) -> None:
    record = read_record(command_line.data_dir)
    assert record is not None
    head = psutil.Process(record.pid)
    names, hosts = set(), set()
    for process in [head, *head.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # one that ends meanwhile
            look = getattr(process, "net_connections", None) or process.connections
            listening = [found for found in look(kind="tcp") if found.status == psutil.CONN_LISTEN]
            names |= {process.name()} if listening else set()
            hosts |= {found.laddr.ip for found in listening}
    assert {"gcs_server", "raylet"} <= names
    assert hosts <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, hosts
    assert (record.auth_mode == "token") == knows_tokens() == (record.open_to == "")


def test_a_large_file_goes_through_a_topic_whole(
    commands: QuickCommandLine, topic: str, tmp_path: Path
) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(os.urandom(12_000_000))
    commands.run("consume", topic, "-s", "archive", "--no-follow")
    sent = commands.run("produce", topic, "--whole-file", str(file))
    assert "12.0 MB stored as" in sent.stderr
    commands.run("consume", topic, "-s", "archive", "--into", str(copy))
    assert copy.read_bytes() == file.read_bytes()
    stats = json.loads(commands.run("stats", topic, "--json").stdout)
    assert stats["subscriptions"]["archive"]["msgBacklog"] == 0
    assert stats["msgChunkPublished"] is True
    commands.run("topics", "delete", topic, "--force")


def test_topics_lines_stats_and_back(commands: QuickCommandLine, topic: str) -> None:
    others = commands.run("topics", "list").stdout
    commands.run("topics", "create", topic, "--partitions", "2")
    again = commands.run("topics", "create", topic, expected=1)
    assert again.stderr.startswith("Error: NotAllowedError: ")
    assert again.stderr.count("\n") == 1

    lines = "".join(f"k{number % 3}:{number}\n" for number in range(100))
    first = commands.run("produce", topic, "--key-separator", ":", text=lines)
    assert "100 lines sent, all confirmed" in first.stderr
    assert "nothing keeps these lines" in first.stderr

    shown = commands.run("consume", topic, "-s", "audit", "--no-follow", "--json").stdout.splitlines()
    messages = [json.loads(line) for line in shown]
    by_key = {key: [m["value"] for m in messages if m["key"] == key] for key in ("k0", "k1", "k2")}
    assert by_key == {f"k{k}": [str(n) for n in range(100) if n % 3 == k] for k in range(3)}

    second = commands.run("produce", topic, "--compression", "zstd", text="x\ny\n")
    assert "nothing keeps" not in second.stderr
    stats = json.loads(commands.run("stats", topic, "--json").stdout)
    assert stats["msgInCounter"] == 102
    assert 1 <= stats["subscriptions"]["audit"]["msgBacklog"] <= 2
    assert sorted(stats["partitions"]) == [
        f"persistent://public/default/{topic}-partition-{i}" for i in (0, 1)
    ]

    assert commands.run("topics", "subscriptions", topic).stdout == "audit\n"
    audit = (topic, "-s", "audit")
    peeked = commands.run("topics", "peek-messages", *audit, "-n", "5").stdout.splitlines()
    assert sorted(json.loads(line)["value"] for line in peeked) == ["x", "y"]
    assert "skipped" in commands.run("topics", "clear-backlog", *audit).stdout
    assert commands.run("consume", topic, "-s", "audit", "--no-follow").stdout == ""
    commands.run("topics", "unsubscribe", *audit)
    assert "SubscriptionNotFound" in commands.run("topics", "clear-backlog", *audit, expected=1).stderr

    commands.run("topics", "delete", topic)
    assert commands.run("topics", "list").stdout == others


_ADMIN = """
import sys
import pulsar_ray
from pulsar_ray import Admin, Client, NotAllowedError, TopicNotFound

plain, parts, missing = (f"{sys.argv[2]}-{name}" for name in ("plain", "parts", "missing"))

def refused(error, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error as refusal:
        return str(refusal)
    raise AssertionError(f"{call} was not refused")

with Admin("local", data_dir=sys.argv[1]) as admin, Client("local", data_dir=sys.argv[1]) as client:
    topics = admin.topics

    def dispatchers():
        return [name for name in admin.stats()["actors"] if parts in name and " -> " in name]

    topics.create_topic(plain)
    topics.create_partitioned_topic(parts, 2)
    assert topics.get_partitions(plain) == 0 and topics.get_partitions(parts) == 2
    assert {f"persistent://public/default/{name}" for name in (plain, parts)} <= set(topics.list())
    for wrong in (topics.get_partitions, topics.stats, topics.delete):
        assert "does not exist" in refused(TopicNotFound, wrong, missing)
    assert missing not in "".join(topics.list())
    refused(NotAllowedError, topics.create_partitioned_topic, plain, 3)
    refused(ValueError, topics.create_partitioned_topic, missing, 0)
    refused(TopicNotFound, topics.create_topic, "no-tenant/no-namespace/t")

    # A subscription made by an administrator starts at the earliest message and keeps all that follow.
    producer = client.create_producer(parts)
    topics.create_subscription(parts, "s")
    refused(NotAllowedError, topics.create_subscription, parts, "s")
    producer.send_many([b"x", b"y"], partition_keys=["1", "2"])
    assert topics.stats(parts)["subscriptions"]["s"]["msgBacklog"] == 2
    # Stats start no dispatcher, what changes a subscription does.
    assert not dispatchers()
    assert topics.expire_messages(parts, "s", 3600) == 0
    assert len(dispatchers()) == 2
    assert len(topics.peek_messages(parts, "s", 5)) == 2
    consumer = client.subscribe(parts, "s")
    assert {consumer.receive(60000).data() for _ in range(2)} == {b"x", b"y"}

    assert "connected consumers" in refused(NotAllowedError, topics.unsubscribe, parts, "s")
    topics.create_subscription(parts, "t", "latest")
    doomed = client.subscribe(parts, "t")
    topics.unsubscribe(parts, "t", force=True)
    refused(pulsar_ray.SubscriptionNotFound, doomed.receive, 60000)
    assert topics.subscriptions(parts) == ["s"]
    fresh = client.subscribe(parts, "t", initial_position=pulsar_ray.InitialPosition.Earliest)
    assert {fresh.receive(60000).data() for _ in range(2)} == {b"x", b"y"}
    fresh.unsubscribe()

    assert "Topic has 4 connected" in refused(NotAllowedError, topics.delete, parts)
    consumer.close()
    producer.close()
    topics.delete(parts)
    refused(TopicNotFound, topics.get_partitions, parts)
    producer = client.create_producer(plain)
    refused(NotAllowedError, topics.delete, plain)
    topics.delete(plain, force=True)
    client.shutdown()
    assert admin.stats()["stores"][0]["path"] == sys.argv[1]
    assert admin.broker()["data_dir"] == sys.argv[1]
refused(pulsar_ray.AlreadyClosed, admin.close)
"""


@pytest.mark.long
def test_the_same_from_python(command_line: CommandLine, topic: str) -> None:
    command = [sys.executable, "-c", _ADMIN, str(command_line.data_dir), topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_perf(command_line: CommandLine, topic: str) -> None:
    produced = command_line.run(
        "perf", "produce", topic, "--count", "2000", "--size", "100", "--threads", "2"
    )
    assert "2,000 messages" in produced.stdout
    assert "p99" in produced.stdout
    consumed = command_line.run("perf", "consume", topic, "--from", "earliest", "--count", "2000")
    assert "2,000 messages" in consumed.stdout


def test_ctrl_c_tells_what_was_confirmed_and_loses_nothing(command_line: CommandLine, topic: str) -> None:
    with (
        command_line.start("consume", topic, "-s", "s") as consumer,
        command_line.start("produce", topic) as producer,
    ):
        assert producer.stdin is not None
        assert consumer.stdout is not None
        producer.stdin.write("one\ntwo\n")
        producer.stdin.flush()
        assert [consumer.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        for process in (producer, consumer):
            process.send_signal(signal.SIGINT)
        _, told = producer.communicate(timeout=TIMEOUT_S)
        assert producer.returncode == 130
        assert "2 lines sent, all confirmed" in told
        shown, told = consumer.communicate(timeout=TIMEOUT_S)
        assert consumer.returncode == 130
        assert shown == ""
        assert "2 messages acknowledged" in told
    assert command_line.run("consume", topic, "-s", "s", "--no-follow").stdout == ""


@pytest.mark.long
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_broken_pipe_is_quiet_and_keeps_what_was_not_shown(
    command_line: CommandLine, topic: str, monkeypatch: pytest.MonkeyPatch, unbuffered: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    lines = "".join(f"{number:01000d}\n" for number in range(3000))
    command_line.run("produce", topic, "--no-batching", text=lines)
    with command_line.start("consume", topic, "-s", "s", "--no-follow") as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert int(consumer.stdout.readline()) == 0
        consumer.stdout.close()
        assert consumer.stderr.read() == ""
    rest = command_line.run("consume", topic, "-s", "s", "--no-follow").stdout.splitlines()
    # The first command may have shown what fits into a pipe of 64 KiB, and into this test's buffer.
    first = int(rest[0])
    assert first <= (65536 + io.DEFAULT_BUFFER_SIZE) // 1001
    assert [int(line) for line in rest] == list(range(first, 3000))


@pytest.mark.long
def test_stop_ends_it_and_the_next_command_brings_everything_back(
    command_line: CommandLine, topic: str
) -> None:
    command_line.run("topics", "create", topic)
    record = read_record(command_line.data_dir)
    assert record is not None
    assert "has ended" in command_line.run("stop").stdout
    assert "nothing to stop" in command_line.run("stop", expected=1).stderr
    # Not started by a command, but found in the background by the next one that needs it.
    assert f"persistent://public/default/{topic}" in command_line.run("topics", "list").stdout.splitlines()
    assert read_record(command_line.data_dir) not in (None, record)


_RAY = """
import sys, ray
context = ray.init(address="local", include_dashboard=False, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.mark.long
def test_the_broker_of_a_ray_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = subprocess.Popen(
        [sys.executable, "-c", _RAY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        assert address
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        monkeypatch.setenv("RAY_ADDRESS", address)
        monkeypatch.setenv("PULSAR_RAY_MAX_ACTIVE_ACTORS", "2")

        def run(*arguments: str, expected: int = 0) -> str:
            command = CommandLine(tmp_path).arguments(*arguments)
            command[command.index("local")] = "auto"
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            assert done.returncode == expected, done
            return done.stdout + done.stderr

        assert str(tmp_path) in run("start")
        assert "runs already" in run("start")
        assert "controller process" in run("status")
        # A partition and a subscription are all that this broker may have: the first ones make room.
        run("consume", "first", "-s", "s", "--no-follow")
        run("consume", "second", "-s", "s", "--no-follow")
        run("topics", "delete", "first")
        assert "has ended" in run("stop")
        assert "no broker runs here" in run("status", expected=1)
    finally:
        cluster.communicate(timeout=TIMEOUT_S)
