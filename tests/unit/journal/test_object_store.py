"""One suite for every object store: a shared directory, and a bucket of an S3 server of this machine."""

from __future__ import annotations

import http.server
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pulsar_ray.errors import RemoteStoreNotInstalled, RemoteStoreRefused, RemoteStoreUnavailable
from pulsar_ray.journal.at_once import Reader
from pulsar_ray.journal.reading import stores_in_bucket
from pulsar_ray.journal.requests import CREATED, EXISTS, UNKNOWN, Create, Delete, Get, ListKeys
from pulsar_ray.journal.storage.bucket import Bucket, open_object_store
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.storage.object_store import ObjectStore, carry_out, prove
from tests.unit.journal.s3_server import bucket, s3_server


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Bucket | FileStore:
    if request.param == "file":
        return open_object_store(f"file://{tmp_path}/shared")
    return bucket(request.getfixturevalue("server"), f"s3://bucket/{tmp_path.name}")


def test_it_keeps_what_the_journal_rests_on(store: ObjectStore) -> None:
    prove(store, "once")
    prove(store, "once")  # and leaves nothing behind


def test_an_object_is_created_once_and_never_overwritten(store: ObjectStore) -> None:
    assert store.create("journal/a/1", b"mine")
    assert not store.create("journal/a/1", b"other")
    assert (store.get("journal/a/1"), store.head("journal/a/1")) == (b"mine", 4)


def test_one_of_many_writers_of_a_name_wins(store: ObjectStore) -> None:
    gate = threading.Barrier(8)

    def write(n: int) -> bool:
        gate.wait()
        return store.create("catalog/7", b"%d" % n)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(write, range(8)))
    assert won.count(True) == 1
    assert store.get("catalog/7") == b"%d" % won.index(True)


def test_names_are_listed_in_order_and_below_their_folder_only(store: ObjectStore) -> None:
    for key in ("journal/a/2", "journal/a/1", "journal/ab/1"):
        store.create(key, b"")
    assert store.list("journal/a/") == ["journal/a/1", "journal/a/2"]
    assert store.list("index/a/") == []


def test_all_objects_are_listed_with_their_sizes(store: Bucket | FileStore) -> None:
    store.create("journal/a/1", b"123")
    store.create("index/a/0", b"1")
    assert sorted((key, size) for key, size, _ in store.measured()) == [("index/a/0", 1), ("journal/a/1", 3)]
    assert all(listed.modified_s > 0 for listed in store.measured())


def test_what_is_deleted_is_absent_and_may_be_deleted_again(store: ObjectStore) -> None:
    store.create("journal/a/1", b"x")
    store.delete(("journal/a/1", "journal/a/2"))
    store.delete(("journal/a/1",))
    assert (store.get("journal/a/1"), store.head("journal/a/1"), store.list("journal/")) == (None, None, [])


def test_requests_of_tasks_get_their_answers(store: ObjectStore) -> None:
    create = Create("journal/a/1", b"x")
    assert [carry_out(store, create), carry_out(store, create)] == [CREATED, EXISTS]
    assert carry_out(store, Get("journal/a/1")) == b"x"
    assert carry_out(store, ListKeys("journal/")) == ["journal/a/1"]
    assert carry_out(store, Delete(("journal/a/1",))) is None


def test_objects_of_others_are_not_listed(store: ObjectStore) -> None:
    """A journal could not read their names."""
    ours = ["journal/a/0000000001/000000000000", "journal/a/0000000001/000000000001"]
    for key in (*ours, "journal/a/README.md", "journal/a/0000000001/listing.csv"):
        assert store.create(key, b"x")
    assert carry_out(store, ListKeys("journal/")) == ours
    assert Reader(store).list("journal/a/") == ours
    assert Reader(store).run(stores_in_bucket()) == ["a"]


class OverwritingStore:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def create(self, key: str, body: bytes) -> bool:
        self.objects[key] = body
        return True

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def head(self, key: str) -> int | None:
        return len(self.objects[key])

    def list(self, prefix: str) -> list[str]:
        return sorted(k for k in self.objects if k.startswith(prefix))

    def delete(self, keys: tuple[str, ...]) -> None:
        for key in keys:
            self.objects.pop(key, None)


def test_a_store_that_overwrites_is_refused() -> None:
    with pytest.raises(RemoteStoreRefused, match="overwrites"):
        prove(OverwritingStore(), "n")


def test_a_bucket_that_is_not_there_is_refused(server: str) -> None:
    with pytest.raises(RemoteStoreRefused):
        bucket(server, "s3://nowhere/x").create("a", b"")
    with pytest.raises(RemoteStoreRefused):
        bucket(server, "s3://nowhere/x").get("a")


def test_a_server_that_is_away_leaves_the_fate_unknown() -> None:
    away = bucket("http://127.0.0.1:9")
    with pytest.raises(RemoteStoreUnavailable):
        away.create("a", b"")
    assert carry_out(away, Get("a")) is UNKNOWN


@pytest.mark.parametrize("url", ["ftp://x/y", "s3:///y", "file://relative/path", "nothing"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(RemoteStoreRefused):
        open_object_store(url)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(RemoteStoreNotInstalled, match=r"pip install \"pulsar-ray\[remote\]\""):
        open_object_store("s3://bucket/x")


def test_what_a_shared_directory_has_besides_is_no_object(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    assert store.create("journal/a/1", b"one")
    for place in ("journal/a/.nfs0000001", "journal/a/.DS_Store", ".unfinished/of-another-process"):
        (tmp_path / place).write_bytes(b"not ours")
    assert store.list("journal/a/") == ["journal/a/1"]
    assert [key for key, *_ in store.measured()] == ["journal/a/1"]


def test_what_a_dead_process_did_not_finish_goes(tmp_path: Path) -> None:
    folder = tmp_path / ".unfinished"
    folder.mkdir()
    for name, age_s in (("of the dead", 7200), ("of the living", 10)):
        (folder / name).write_bytes(b"a part")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    assert FileStore(tmp_path).create("journal/a/1", b"one")
    assert [path.name for path in folder.iterdir()] == ["of the living"]


def test_names_do_not_leave_the_directory(tmp_path: Path) -> None:
    with pytest.raises(RemoteStoreRefused):
        open_object_store(f"file://{tmp_path}").get("journal/../../x")


def test_a_bucket_that_is_not_there_is_named_with_a_remedy(server: str) -> None:
    store = bucket(server, "s3://other/prefix")
    for ask in (
        lambda: store.create("journal/a", b""), lambda: store.get("journal/a"), lambda: store.list("journal/")
    ):  # fmt: skip
        with pytest.raises(RemoteStoreRefused, match=r"s3://other/prefix/journal/.*NoSuchBucket.*make the"):
            ask()


class Refusing(http.server.BaseHTTPRequestHandler):
    """An S3 server that knows nobody's credentials."""

    said = "<Code>InvalidAccessKeyId</Code><Message>Your key is unknown.</Message>"

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = f"<Error>{self.said}</Error>".encode()
        self.send_response(403)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def log_message(self, *_: object) -> None:
        pass


class Late(Refusing):
    """An S3 server whose clock is another one."""

    said = "<Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message>"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Refusing, r"InvalidAccessKeyId: Your key.*look at the cred"),
        (Late, r"RequestTimeTooSkewed: The difference.*the clock of this machine is wrong"),
    ],
)
def test_wrong_credentials_and_clocks_are_named_with_a_remedy(kind: type[Refusing], told: str) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as refusing:
        threading.Thread(target=refusing.serve_forever, daemon=True).start()
        store = bucket(f"http://127.0.0.1:{refusing.server_port}")
        for ask in (lambda: store.create("k", b""), lambda: store.get("k"), lambda: store.delete(("k",))):
            with pytest.raises(RemoteStoreRefused, match=told):
                ask()
        refusing.shutdown()
