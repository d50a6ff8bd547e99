"""`pulsar-ray demo --nodes-may-go`: a broker loses its disk, and nothing that was confirmed.

Run as a program it is one of the demo's clients: each joins a Ray of its own.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from pulsar_ray.errors import ConnectError, DataLost
from pulsar_ray.launch.embedded import stop_embedded
from pulsar_ray.model.enums import ConsumerType

MESSAGES = 1000
ACKNOWLEDGED = 400
TOPIC, SUBSCRIPTION = "demo-orders", "demo-audit"
WAIT_MS = 60_000
GONE_S = 60.0
_STANDALONE = (sys.executable, "-c", "from pulsar_ray.cli.main import main; main()", "standalone")


def show_nodes_may_go(say: Callable[[str], None]) -> None:
    """Publish, kill everything with -9, delete the disk, found anew, and compare.

    Raises DataLost if anything is missing or other than it was.
    """
    with tempfile.TemporaryDirectory(prefix="pulsar-ray-demo-") as folder:
        home = Path(folder)
        url = (home / "object-store").as_uri()
        say(f"a broker ships to {url}, and confirms what is there (remote_durability sync)")
        with _broker(home / "first", "--remote", url) as process:
            before = _client("publish", home / "first")
            say(
                f"published {MESSAGES:,} messages in {before['seconds']:.1f} s, acknowledged {ACKNOWLEDGED:,}"
            )
            killed = _kill(process, home / "first")
        say(f"killed all {killed} processes with -9")
        shutil.rmtree(home / "first")
        say("deleted the data directory")
        began = time.monotonic()
        with _broker(home / "second", "--from", url):
            say(f"a new broker has brought all of it back in {time.monotonic() - began:.0f} s")
            after = _client("read", home / "second")
        _compare(before, after)
        say(f"read the other {len(after['got']):,} messages, each once, with the ids that they had")


def _compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    wanted = {value: at for value, at in before["sent"].items() if value not in before["acknowledged"]}
    got = dict(after["got"])
    if got != wanted or len(after["got"]) != len(got):
        missing = len(wanted.keys() - got.keys())
        raise DataLost(
            f"of {len(wanted)} messages {missing} are missing, and {len(after['got'])} came: this is a "
            "fault, please report it"
        )


@contextlib.contextmanager
def _broker(data_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*_STANDALONE, "--data-dir", str(data_dir), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        _wait_until_it_serves(process)
        yield process
    finally:
        if process.poll() is None:
            stop_embedded(data_dir)
        process.communicate(timeout=GONE_S)


def _wait_until_it_serves(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    said: list[str] = []
    while not (line := process.stdout.readline()).startswith("dashboard"):
        if not line:
            raise ConnectError(f"the broker of the demo ended: {' '.join(said[-3:]).strip()}")
        said.append(line)


def _client(job: str, data_dir: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "pulsar_ray.cli.nodes_may_go", job, str(data_dir)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise ConnectError(f"a client of the demo failed: its error stands above ({job})")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _kill(process: subprocess.Popen[str], data_dir: Path) -> int:
    """Kill a broker with its children, and all that names its data directory."""
    owned = psutil.Process(process.pid).children(recursive=True)
    owned += [each for each in psutil.process_iter() if each not in owned and _names(each, data_dir)]
    process.kill()
    for each in owned:
        with contextlib.suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(owned, timeout=GONE_S)
    return len({each.pid for each in owned} | {process.pid})


def _names(process: psutil.Process, data_dir: Path) -> bool:
    try:
        return process.pid != psutil.Process().pid and str(data_dir) in " ".join(process.cmdline())
    except psutil.Error:
        return False


def _publish(data_dir: str) -> dict[str, Any]:
    from pulsar_ray.admin.admin import Admin  # noqa: PLC0415
    from pulsar_ray.client.client import Client  # noqa: PLC0415

    admin = Admin("local", data_dir=data_dir)
    admin.namespaces.policies.set("public/default", "remote_durability", "sync")
    admin.topics.create_partitioned_topic(TOPIC, 2)
    client = Client("local", data_dir=data_dir)
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=ConsumerType.Shared)
    producer = client.create_producer(TOPIC)
    began = time.monotonic()
    sent: dict[str, str] = {}
    for number in range(MESSAGES):
        producer.send_async(b"%d" % number, lambda _, at, n=number: sent.update({str(n): str(at)}))  # type: ignore[misc]
    producer.flush()
    seconds = time.monotonic() - began
    acknowledged = []
    for _ in range(ACKNOWLEDGED):
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        acknowledged.append(message.data().decode())
    consumer.close()
    client.close()
    return {"sent": sent, "acknowledged": acknowledged, "seconds": seconds}


def _read(data_dir: str) -> dict[str, Any]:
    from pulsar_ray.client.client import Client  # noqa: PLC0415

    client = Client("local", data_dir=data_dir)
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=ConsumerType.Shared)
    got: list[list[str]] = []
    while len(got) < MESSAGES - ACKNOWLEDGED or consumer.has_message_available():
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        got.append([message.data().decode(), str(message.message_id())])
    client.close()
    return {"got": got}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"publish": _publish, "read": _read}[sys.argv[1]](sys.argv[2])))
