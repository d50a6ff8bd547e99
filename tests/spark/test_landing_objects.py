"""Landing into an object store that speaks S3's protocol over HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from pulsar_ray_spark.landing.folder import ObjectFolder, open_folder
from tests.conformance.broker import Broker
from tests.spark.test_landing import Killed, Killer, Lander, broker, numbered, publish

moto = pytest.importorskip("moto.server", reason="pip install 'moto[s3]' flask flask-cors")
pytestmark = pytest.mark.long
__all__ = ["broker", "publish"]  # the fixtures

Publish = Callable[[str, Iterable[str]], None]


class KilledObjects(ObjectFolder):
    """Ends the landing before an object is put, or behind it."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, killer: Killer) -> None:
        super().__init__(filesystem, path, path)
        self._killer = killer

    def place(self, scratch: Path, name: str, time_ms: int) -> None:
        self._killer.step()
        super().place(scratch, name, time_ms)
        self._killer.step()


@pytest.fixture(scope="module")
def store() -> Iterator[pafs.S3FileSystem]:
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield pafs.S3FileSystem(
        endpoint_override=f"{host}:{port}",
        scheme="http",
        region="us-east-1",
        access_key="any",
        secret_key="any",
        allow_bucket_creation=True,
    )
    server.stop()


def values(store: pafs.S3FileSystem, folder: ObjectFolder) -> list[str]:
    tables = [
        pq.read_table(f"{folder.path}/{name}", filesystem=store, columns=["value"])
        for name in folder.names()
        if name.endswith(".parquet")
    ]
    return [value.decode() for table in tables for value in table["value"].to_pylist()]


def test_objects_are_whole_and_named_as_files_are(
    broker: Broker, publish: Publish, store: pafs.S3FileSystem, tmp_path: Path
) -> None:
    topic = broker.topic(partitions=2)
    lander = Lander(broker, topic, tmp_path)
    folder = open_folder("bucket/whole", store)
    assert isinstance(folder, ObjectFolder)
    for first in (0, 100):
        publish(topic, numbered(first, first + 100))
        lander.land(folder=folder)
        assert lander.land(folder=folder) == 0
    assert sorted(values(store, folder)) == sorted(numbered(200))
    description = folder.description()
    assert description is not None
    assert topic in description
    name = next(name for name in folder.names() if name.endswith(".parquet"))
    folder.delete(name)
    folder.delete(name)
    assert not folder.has(name)


def test_objects_have_each_message_once_wherever_the_process_ends(
    broker: Broker, publish: Publish, store: pafs.S3FileSystem, tmp_path: Path
) -> None:
    topic = broker.topic(partitions=2)
    lander = Lander(broker, topic, tmp_path)
    path, sent = "bucket/killed", 0
    for moment in itertools.count(1):
        publish(topic, numbered(sent, sent + 20))
        sent += 20
        killer = Killer(moment)
        with suppress(Killed):
            lander.land(killer=killer, folder=KilledObjects(store, path, killer))
        if killer.steps < moment:
            break
    assert moment > 8
    folder = ObjectFolder(store, path, path)
    lander.land(folder=folder)
    assert sorted(values(store, folder)) == sorted(numbered(sent))
