"""A node's data directory: identity, exclusive use, refusals, free space."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pulsar_ray.errors import (
    BrokerPersistenceError,
    CorruptData,
    DataDirectoryInUse,
    NetworkFileSystem,
    NotOurDataDirectory,
    PulsarException,
    UnsupportedFormatVersion,
    UntrustedPath,
    WrongNode,
)
from pulsar_ray.managed_ledger.store import store_directory
from pulsar_ray.managed_ledger.store.store_directory import (
    StoreDirectory,
    check_is_store,
    check_store_directory,
    create_store,
    hold_cluster_lock,
    is_mount,
)
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, new_identity, read_identity
from tests.other_user import SOMEBODY, needs_root

_HOLDER = """
import sys
from pathlib import Path
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory, hold_cluster_lock
path = Path(sys.argv[1])
if sys.argv[2] == "store":
    held = StoreDirectory.open(path, address="there:1", session="cluster-a")
else:
    held = hold_cluster_lock(path)
print("held", flush=True)
sys.stdin.read()
"""


def hold(path: Path, what: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_identity_is_made_once_and_kept(tmp_path: Path) -> None:
    store = StoreDirectory.open(tmp_path / "a" / "b", address="here")
    store.close()
    again = StoreDirectory.open(tmp_path / "a" / "b", address="here", expected_store_id=store.store_id)
    assert again.store_id == store.store_id
    again.close()
    other = StoreDirectory.open(tmp_path / "c", address="here")
    assert other.store_id != store.store_id
    other.close()
    with pytest.raises(WrongNode, match=store.store_id):
        StoreDirectory.open(tmp_path / "c", address="here", expected_store_id=store.store_id)


def test_a_lost_directory_is_not_made_anew(tmp_path: Path) -> None:
    lost = tmp_path / "lost"
    for refused in (
        lambda: StoreDirectory.open(lost, address="here", expected_store_id="x"),
        lambda: StoreDirectory.open(lost, address="here", create=False),
        lambda: hold_cluster_lock(lost),
        lambda: check_is_store(lost, "x"),
    ):
        with pytest.raises(WrongNode):
            refused()
    assert not lost.exists()


def test_what_a_store_knows_of_its_cluster_is_kept(tmp_path: Path) -> None:
    store = StoreDirectory.open(tmp_path, address="here")
    known = dataclasses.replace(
        store.identity, cluster_id="c", catalog_store_id="s", generations=("g1", "g2"), numbers_below=1000
    )
    store.change(known)
    store.close()
    assert read_identity(tmp_path) == known
    again = StoreDirectory.open(tmp_path, address="here", create=False)
    assert again.identity == known
    again.close()


def test_the_identity_of_version_0_1_is_read_and_written_anew(tmp_path: Path) -> None:
    (tmp_path / "store.json").write_text('{"store_id": "old", "format_version": 1}')
    store = StoreDirectory.open(tmp_path, address="here", create=False)
    assert (store.store_id, store.identity.cluster_id, store.identity.format_version) == ("old", "", 1)
    store.change(dataclasses.replace(store.identity, cluster_id="c"))
    store.close()
    assert json.loads((tmp_path / "store.json").read_text())["format_version"] == 2


def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "p").mkdir(parents=True)
    (data / "run").mkdir()
    (data / "run" / "standalone.log").touch()
    StoreDirectory.open(tmp_path / "other", address="here").close()
    (data / "store.json").write_text((tmp_path / "other" / "store.json").read_text())
    (data / "meta.sqlite").touch()
    for path in (data, *data.rglob("*")):
        path.chmod(0o755)
    StoreDirectory.open(data, address="here").close()
    for path in (data, *data.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


def test_directories_above_are_made_closed_whatever_the_umask(tmp_path: Path) -> None:
    """Otherwise another user could put something else in the data directory's place."""
    before = os.umask(0)
    try:
        create_store(tmp_path / "above" / "data")
        StoreDirectory.open(tmp_path / "other" / "data", address="here").close()
    finally:
        os.umask(before)
    for name in ("above", "other"):
        assert not (tmp_path / name).stat().st_mode & 0o077


@pytest.mark.parametrize("name", ["store.json.new", "store.lock", "cluster.lock"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    """Another user may have put it there, where the directory above can be written to by everybody."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(mine)
    with pytest.raises(PulsarException):
        StoreDirectory.open(tmp_path / "data", address="here")
    assert mine.read_text() == "precious"


def test_a_store_is_made_once(tmp_path: Path) -> None:
    identity, is_new = create_store(tmp_path / "new")
    assert is_new
    assert create_store(tmp_path / "new") == (identity, False)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotOurDataDirectory):
        create_store(tmp_path)
    assert is_mount(Path("/proc/self"))
    assert not is_mount(Path("/this-is-not-there/nor-this"))


def test_of_several_that_make_a_store_at_once_one_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another identity would be written over one that is served already."""
    together = threading.Barrier(2)

    def when_both_are_there(**fields: bool) -> StoreIdentity:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.3)
        return new_identity(**fields)

    monkeypatch.setattr(store_directory, "new_identity", when_both_are_there)
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(create_store, [tmp_path, tmp_path]))
    assert sorted(is_new for _, is_new in made) == [False, True]
    assert {identity for identity, _ in made} == {read_identity(tmp_path)}


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotOurDataDirectory, match=r"thesis\.tex"):
        StoreDirectory.open(tmp_path, address="here")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    fresh = tmp_path / "disk"
    (fresh / "lost+found").mkdir(parents=True)
    StoreDirectory.open(fresh, address="here").close()


def test_what_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BrokerPersistenceError, match="cannot be used"):
        StoreDirectory.open(tmp_path / "file" / "below", address="here")
    store = tmp_path / "store"
    StoreDirectory.open(store, address="here").close()
    (store / "store.json").write_text("{")
    with pytest.raises(CorruptData):
        StoreDirectory.open(store, address="here")
    (store / "store.json").write_text(json.dumps({"store_id": "x", "format_version": 99}))
    with pytest.raises(UnsupportedFormatVersion):
        StoreDirectory.open(store, address="here")

    def refuse(path: Path) -> None:
        raise NetworkFileSystem(str(path))

    monkeypatch.setattr("pulsar_ray.managed_ledger.store.store_directory.require_local_file_system", refuse)
    with pytest.raises(NetworkFileSystem):
        StoreDirectory.open(tmp_path / "other", address="here")


_UNPRIVILEGED = """
import os, sys
from pathlib import Path
from pulsar_ray.launch.embedded import prepare_run_directory
from pulsar_ray.errors import BrokerPersistenceError
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
for path in map(Path, sys.argv[1:]):
    for use in (lambda: StoreDirectory.open(path, address="here"), lambda: prepare_run_directory(path)):
        try:
            use()
        except BrokerPersistenceError as error:
            print(error)
        else:
            sys.exit(f"{path} was taken")
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A directory that other users reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_directory_that_may_not_be_written_is_refused(open_to_all: Path) -> None:
    """Nothing is refused to root, so another user tries."""
    empty, ours = open_to_all / "empty", open_to_all / "ours"
    empty.mkdir()
    StoreDirectory.open(ours, address="here").close()
    for directory in (empty, ours):
        directory.chmod(0o555)
    paths = [empty, ours, empty / "below"]
    done = subprocess.run(
        [sys.executable, "-c", _UNPRIVILEGED, *map(str, paths)], stdout=subprocess.PIPE, text=True, check=True
    )
    refusals = done.stdout.splitlines()
    assert len(refusals) == 2 * len(paths)
    for number, refusal in enumerate(refusals):
        assert f"{paths[number // 2]} cannot be used as data directory" in refusal
        assert "ermission denied" in refusal


def test_a_second_broker_is_told_who_is_there(tmp_path: Path) -> None:
    holder = hold(tmp_path, "store")
    with pytest.raises(DataDirectoryInUse, match=rf"process {holder.pid} at there:1"):
        StoreDirectory.open(tmp_path, address="here", wait_s=0.0)
    holder.communicate()


def test_a_second_broker_waits_for_one_that_ends(tmp_path: Path) -> None:
    holder = hold(tmp_path, "store")
    timer = threading.Timer(0.2, holder.kill)
    timer.start()
    StoreDirectory.open(tmp_path, address="here", wait_s=30.0).close()
    timer.join()
    holder.communicate()


def test_another_cluster_waits_for_the_processes_of_the_first(tmp_path: Path) -> None:
    store = StoreDirectory.open(tmp_path, address="there:1", session="cluster-a")
    actor = hold(tmp_path, "actor")
    store.close()
    with pytest.raises(DataDirectoryInUse, match="there:1"):
        StoreDirectory.open(tmp_path, address="here", session="cluster-b", wait_s=0.0)
    restarted = StoreDirectory.open(tmp_path, address="there:1", session="cluster-a", wait_s=0.0)
    hold_cluster_lock(tmp_path).release()
    restarted.close()
    actor.communicate()
    StoreDirectory.open(tmp_path, address="here", session="cluster-b", wait_s=5.0).close()


def uses_of(path: Path) -> list[Callable[[], object]]:
    return [
        lambda: StoreDirectory.open(path, address="here"),
        lambda: create_store(path),
        lambda: check_store_directory(path),
    ]


@needs_root
@pytest.mark.parametrize("part", [".", "store.json", "p", "run"])
def test_a_directory_that_another_user_can_change_is_refused(tmp_path: Path, part: str) -> None:
    StoreDirectory.open(tmp_path, address="here").close()
    for name in ("p", "run"):
        (tmp_path / name).mkdir(exist_ok=True)
    os.chown(tmp_path / part, SOMEBODY, SOMEBODY)
    for use in uses_of(tmp_path):
        with pytest.raises(UntrustedPath, match=f"user {SOMEBODY}"):
            use()
    os.chown(tmp_path / part, 0, 0)
    StoreDirectory.open(tmp_path, address="here").close()


@needs_root
def test_a_directory_in_which_others_could_write_is_taken_if_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "run").mkdir()
    os.chown(path / "run", SOMEBODY, SOMEBODY)
    path.chmod(0o775)
    for use in uses_of(path):
        with pytest.raises(UntrustedPath, match="run"):
            use()
    (path / "run").rmdir()
    StoreDirectory.open(path, address="here").close()
    assert path.stat().st_mode & 0o777 == 0o700


_VOLUME_OF_ROOT = """
import os, sys
from pathlib import Path
from pulsar_ray.errors import UntrustedPath
from pulsar_ray.managed_ledger.store.store_directory import StoreDirectory
os.setgroups([4100])
os.setgid(4101)
os.setuid(4101)
for path in map(Path, sys.argv[1:]):
    try:
        StoreDirectory.open(path, address="here").close()
    except UntrustedPath as error:
        print(error)
    else:
        print("taken")
"""


@needs_root
def test_the_top_of_a_volume_may_be_roots_unless_everybody_writes_there(open_to_all: Path) -> None:
    """Kubernetes hands a volume to a group this way."""
    of_group, of_all = open_to_all / "group", open_to_all / "all"
    for path, mode in ((of_group, 0o2770), (of_all, 0o1777)):
        path.mkdir()
        os.chown(path, 0, 4100)
        path.chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", _VOLUME_OF_ROOT, str(of_group), str(of_all)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert first == "taken"
    assert f"everybody may write in {of_all}" in second
