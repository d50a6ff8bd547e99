"""A Kafka of one node, and Spark's source for it, of jars that Maven fetches."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring.environment import Skipped

BROKER = "org.apache.kafka:kafka_2.13:3.9.1"
FETCH_S = 300.0
START_S = 60.0
END_S = 30.0
PARTITIONS = 4

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
  </dependency></dependencies>
</project>
"""
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/data
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


def fetched(artifact: str, directory: Path) -> list[Path]:
    """The jars of a Maven artifact and of all that it needs.

    Raises Skipped without Maven or its repository.
    """
    if shutil.which("mvn") is None:
        raise Skipped("there is no mvn on the PATH to fetch Kafka with")
    directory.mkdir()
    (directory / "pom.xml").write_text(_POM.format(*artifact.split(":")))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    try:
        ended = subprocess.run(
            [*command, f"-DoutputDirectory={directory}/jars"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Skipped(f"Maven did not fetch {artifact} within {FETCH_S:g} s") from None
    if ended.returncode:
        raise Skipped(f"Maven cannot fetch {artifact}: {ended.stdout.strip()[:200]}")
    return sorted((directory / "jars").glob("*.jar"))


def spark_source(version: str, have: Path, directory: Path) -> list[Path]:
    """The jars of Spark's Kafka source that are not among those in `have`."""
    artifact = f"org.apache.spark:spark-sql-kafka-0-10_2.12:{version}"
    there = {_artifact(path) for path in have.glob("*.jar")}
    return [path for path in fetched(artifact, directory) if _artifact(path) not in there]


def _artifact(jar: Path) -> str:
    return jar.name.rpartition("-")[0]


class Kafka:
    """A broker that is its own controller, with its log in `directory`."""

    def __init__(self, java: Path, jars: Sequence[Path], directory: Path) -> None:
        directory.mkdir()
        port, controller = _free_port(), _free_port()
        self.address = f"127.0.0.1:{port}"
        settings = directory / "server.properties"
        settings.write_text(
            _SETTINGS.format(port=port, controller=controller, directory=directory, partitions=PARTITIONS)
        )
        run = [str(java), "-Xms1g", "-Xmx1g", "-cp", os.pathsep.join(map(str, jars))]
        # Any 16 bytes in base64 are a name for a cluster.
        tool = ["kafka.tools.StorageTool", "format", "-t", "YmVuY2gtYmVuY2gtYmVuYw", "-c", str(settings)]
        subprocess.run([*run, *tool], capture_output=True, check=True)
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*run, "kafka.Kafka", str(settings)], stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_S
        while not _listens(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise Skipped(f"Kafka did not start: {(directory / 'log').read_text()[-200:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """End the broker."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
