"""The embedded broker: one for all processes of a data directory, gone when unused, back with everything.

Every client is a process of its own, as in real life; this one stays free for the other tests' Ray.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from pulsar_ray import Client
from pulsar_ray.errors import (
    BrokerPersistenceError,
    DataDirectoryInUse,
    NetworkFileSystem,
    NotOurDataDirectory,
    PulsarException,
)
from pulsar_ray.launch.embedded import EmbeddedRecord, has_clients, read_record, stop_embedded
from pulsar_ray.ledger.disk import require_local_file_system
from pulsar_ray.managed_ledger.store import store_directory
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
from pulsar_ray.testing.waiting import wait_until
from tests.ending_processes import is_gone

# Several brokers are started one after the other, each by a Ray of its own.
pytestmark = pytest.mark.timeout(600)

TIMEOUT_S = 150.0
ENDED_S = 30.0
NFS = 0x6969

_CLIENT = """
import sys
import pulsar_ray
client = pulsar_ray.Client(
    "local",
    data_dir=sys.argv[1],
    embedded_idle_shutdown_seconds=1.0,
    embedded_dashboard=len(sys.argv) > 2,
    operation_timeout_seconds=180,
)
earliest = pulsar_ray.InitialPosition.Earliest
"""
_WAIT = """
print("ready", flush=True)
sys.stdin.read()
client.close()
"""


@contextmanager
def client_process(
    data_dir: Path, code: str, *, has_dashboard: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code` with a `client`; it is killed if it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CLIENT + code, str(data_dir), *["dashboard"] * has_dashboard],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def end(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return output


def record_of(data_dir: Path) -> EmbeddedRecord:
    record = read_record(data_dir)
    assert record is not None
    return record


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    stop_embedded(tmp_path / "data")


def shows_metrics(data_dir: Path) -> bool:
    """Whether `pulsar-ray metrics show` finds the broker's series in the endpoint of its Ray."""
    command = [sys.executable, "-c", "from pulsar_ray.cli.main import main; main()"]
    where = ["--service-url", "local", "--data-dir", str(data_dir)]
    shown = subprocess.run([*command, *where, "metrics", "show"], capture_output=True, text=True, check=True)
    (count,) = re.findall(r"endpoint .* (\d+) series of the broker", shown.stdout)
    return int(count) > 0


@pytest.mark.long
def test_processes_share_a_broker_that_ends_when_idle_and_comes_back_with_everything(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_metrics_report_interval_ms", "1000")
    produce = """
producer = client.create_producer("t")
for number in range(10):
    producer.send(b"%d" % number, partition_key="k")
"""
    consume = """
consumer = client.subscribe("t", "s", initial_position=earliest)
for number in range(10):
    message = consumer.receive(60000)
    assert message.data() == b"%d" % number, message.data()
    if number < 5:
        consumer.acknowledge(message)
"""
    # Both at once on an empty directory: one of them starts the broker, the other waits for it.
    with (
        client_process(data_dir, produce + _WAIT, has_dashboard=True) as producer,
        client_process(data_dir, consume + _WAIT, has_dashboard=True) as consumer,
    ):
        ready(producer)
        ready(consumer)
        record = record_of(data_dir)
        wait_until(lambda: shows_metrics(data_dir), TIMEOUT_S, "metrics in its endpoint")
        end(producer)
        assert record_of(data_dir) == record
        end(consumer)
    wait_until(lambda: read_record(data_dir) is None, TIMEOUT_S, "the idle broker has withdrawn its record")
    wait_until(lambda: not record.is_alive(), TIMEOUT_S, "its process has ended")

    rest = """
consumer = client.subscribe("t", "s")
for number in range(5, 10):
    message = consumer.receive(60000)
    print(message.data().decode(), message.partition_key())
    consumer.acknowledge(message)
client.create_producer("t").send(b"new")
print(consumer.receive(60000).data().decode())
client.close()
"""
    with client_process(data_dir, rest) as process:
        assert end(process).split("\n") == [*(f"{number} k" for number in range(5, 10)), "new", ""]


@pytest.mark.long
def test_ten_processes_at_once_share_a_broker_that_outlives_its_killed_starter(data_dir: Path) -> None:
    use = """
consumer = client.subscribe("t", name, initial_position=earliest)
producer = client.create_producer("t")
for number in range(5):
    producer.send(f"{name} {number}".encode())
print("ready", flush=True)
sys.stdin.readline()
received = []
for _ in range(50):
    message = consumer.receive(120000)
    received.append(message.data().decode())
    consumer.acknowledge(message)
client.close()
print(sorted(received))
"""
    with ExitStack() as stack:
        codes = [f"name = 'p{index}'\n{use}" for index in range(10)]
        processes = [stack.enter_context(client_process(data_dir, code)) for code in codes]
        for process in processes:
            ready(process)
        record = record_of(data_dir)
        starter = psutil.Process(record.pid).ppid()
        assert starter in {process.pid for process in processes}
        psutil.Process(starter).kill()
        expected = sorted(f"p{index} {number}" for index in range(10) for number in range(5))
        rest = [process for process in processes if process.pid != starter]
        outputs = [process.communicate("\n", timeout=TIMEOUT_S)[0] for process in rest]
        assert outputs == [f"{expected}\n"] * 9
    wait_until(lambda: read_record(data_dir) is None, TIMEOUT_S, "the idle broker has withdrawn its record")


@pytest.mark.long
def test_a_program_outlives_its_broker_and_keeps_it_as_long_as_it_is_on_its_ray(data_dir: Path) -> None:
    use = """
import os
import ray
from pulsar_ray.errors import BrokerGone, ForkedClient

def wait():
    print("ready", flush=True)
    sys.stdin.readline()

def raises(kind, use):
    try:
        use()
    except kind:
        return True
    return False

def new():
    return pulsar_ray.Client("local", data_dir=sys.argv[1], embedded_idle_shutdown_seconds=1.0)

producer = client.create_producer("t")
producer.send(b"1")
waiting = client.subscribe("t", "s")
child = os.fork()
if child == 0:
    os._exit(0 if raises(ForkedClient, lambda: new().create_producer("t")) else 1)
assert os.waitpid(child, 0)[1] == 0
wait()
assert raises(BrokerGone, waiting.receive)
assert raises(BrokerGone, lambda: producer.send(b"2"))
client.close()
client = new()
client.create_producer("t").send(b"3")
reader = client.create_reader("t", pulsar_ray.MessageId.earliest)
print([reader.read_next(60000).data().decode() for _ in range(2)], flush=True)
client.close()
wait()
ray.shutdown()
wait()
"""
    with client_process(data_dir, use) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ready(process)
        lost = psutil.Process(record_of(data_dir).pid)
        lost.kill()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "['1', '3']\n"
        ready(process)
        assert has_clients(data_dir)  # a broker that left now would take the program along
        process.stdin.write("\n")
        process.stdin.flush()
        ready(process)
        wait_until(lambda: not has_clients(data_dir), TIMEOUT_S, "the program is done with the broker")
        end(process)


@pytest.mark.long
@pytest.mark.parametrize(
    "removed",
    [
        "",
        "run/standalone.json",
        "run",
        "run/clients.lock",
    ],
)
def test_a_broker_that_nobody_finds_any_more_ends_with_everything_of_it(data_dir: Path, removed: str) -> None:
    """As test fixtures leave it, which remove a temporary directory as soon as their program ends."""
    use = """
client.create_producer("t").send(b"1")
client.subscribe("t", "s")
"""
    with client_process(data_dir, use + _WAIT) as process:
        ready(process)
        broker = psutil.Process(record_of(data_dir).pid)
        processes = [broker, *broker.children(recursive=True)]
        assert len(processes) > 5
        path = data_dir / removed
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        wait_until(lambda: all(map(is_gone, processes)), ENDED_S, "the end of the broker and its Ray")
        end(process)
    assert read_record(data_dir) is None


@pytest.mark.long
def test_a_directory_in_use_is_refused_with_its_user(data_dir: Path) -> None:
    held = StoreDirectory.open(data_dir, address="elsewhere:1")
    try:
        with pytest.raises(DataDirectoryInUse, match="elsewhere:1"):
            Client("local", data_dir=data_dir).create_producer("t")
    finally:
        held.close()


def refused(data_dir: Path) -> PulsarException:
    with pytest.raises(PulsarException) as caught:
        Client("local", data_dir=data_dir).create_producer("t")
    return caught.value


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    error = refused(tmp_path)
    assert isinstance(error, NotOurDataDirectory)
    assert "thesis.tex" in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/no/such/place"])
def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    error = refused(tmp_path / name)
    assert isinstance(error, BrokerPersistenceError)
    assert str(tmp_path / name) in str(error)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_nfs = functools.partial(require_local_file_system, probe=lambda _: NFS)
    monkeypatch.setattr(store_directory, "require_local_file_system", on_nfs)
    error = refused(tmp_path)
    assert isinstance(error, NetworkFileSystem)
    assert "NFS" in str(error)
    assert list(tmp_path.iterdir()) == []
