from __future__ import annotations

import dataclasses
import os
import platform
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private.utils import check_version_info

from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, ForkedClient, UnsupportedVersionError
from pulsar_ray.launch import connect
from pulsar_ray.launch.connect import join_ray
from pulsar_ray.launch.embedded import EmbeddedRecord

CHECK_HEAD = connect._check_head


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that is on no Ray yet, whatever other tests of this one have joined.

    Those who listen here are no heads, and are not asked.
    """
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(connect, "_check_head", lambda _: None)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1", "no-such-host.invalid:6379"]
)
def test_an_address_where_nobody_listens_is_refused_without_asking_ray(address: str) -> None:
    with pytest.raises(ConnectError, match=r"no Ray cluster answers at .*ray start"):
        join_ray(address)


def test_a_head_that_takes_connections_and_does_not_answer_is_named_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect, "HEAD_ANSWER_S", 0.5)
    monkeypatch.setattr(connect, "_check_head", CHECK_HEAD)
    monkeypatch.setattr(connect, "take_token", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectError, match=r"does not answer within 0.5 s.*gcs_server"):
            join_ray(address)


def test_an_environment_that_asks_for_rays_remote_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(ValueError, match=r"RAY_ADDRESS is ray://head:10001: .*`ray job submit`"):
        join_ray("auto")


@pytest.mark.parametrize("service_url", ["auto", "192.0.2.7:6379"])
def test_a_process_that_is_on_rays_remote_client_is_refused(
    service_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.util.client.ray, "is_connected", lambda: True)
    with pytest.raises(ValueError, match=r"connected to Ray by ray://: .*`ray job submit`"):
        join_ray(service_url)


@pytest.mark.parametrize(
    ("address", "is_it"),
    [
        ("192.0.2.7:6379", True),
        ("192.0.2.7:6380", False),
        ("192.0.2.8:6379", False),
        ("127.0.0.1:6379", True),
        ("no-such-host.invalid:6379", False),
    ],
)
def test_a_process_that_is_on_a_ray_already_stays_there(
    address: str, is_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = SimpleNamespace(
        is_initialized=lambda: True,
        init=lambda **_: None,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="192.0.2.7:6379"),
        util=ray.util,
    )
    monkeypatch.setattr(connect, "node_address", lambda: "192.0.2.7")
    monkeypatch.setattr(connect, "ray", joined)
    if is_it:
        assert join_ray(address)
    else:
        with pytest.raises(ConnectError, match=r"192\.0\.2\.7:6379 already.*Client\(\"auto\"\)"):
            join_ray(address)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_token_is_shown_to_a_cluster_however_its_address_came(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(connect, "_check_answers", lambda _: None)
    monkeypatch.setattr(connect, "has_auth_token", lambda: True)
    monkeypatch.setattr(connect, "share_auth_mode", modes.append)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert join_ray("head:6379" if is_given else "auto")
    assert modes == ["token"]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which `ray start` leaves the cluster's address."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1"])
def test_the_address_that_a_killed_ray_left_behind_is_no_running_ray(
    address: str, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded.write_text(address)
    assert not join_ray("auto")
    monkeypatch.setattr(connect, "_is_of_this_machine", lambda _: False)
    with pytest.raises(ConnectError, match=r"no Ray cluster answers at .*:1"):
        join_ray("auto")


def test_the_address_of_a_ray_that_runs_is_joined(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []
    monkeypatch.setattr(ray, "init", lambda address, **_: joined.append(address))
    assert not join_ray("auto"), "there is no file"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        recorded.write_text(address)
        assert join_ray("auto")
    assert joined == [address]


AS_ANOTHER_USER = """
import os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
if sys.argv[1] == "note":
    with open(sys.argv[2], "w") as file:
        file.write(sys.argv[3])
else:
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""
needs_two_users = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that Ray was told to connect to, where it shows this user's token."""
    addresses: list[str] = []
    monkeypatch.setattr(ray, "init", lambda address, **_: addresses.append(address))
    return addresses


@pytest.fixture
def port_of_another_user() -> Iterator[int]:
    command = [sys.executable, "-c", AS_ANOTHER_USER, "listen"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate("")


@needs_two_users
def test_the_note_of_another_user_is_not_believed(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as name,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        monkeypatch.setenv("RAY_TMPDIR", name)
        # As `ray start` leaves it.
        os.chmod(name, 0o755)
        (Path(name) / "ray").mkdir()
        (Path(name) / "ray").chmod(0o777)
        note = Path(name) / "ray" / "ray_current_cluster"
        address = f"127.0.0.1:{server.getsockname()[1]}"
        subprocess.run([sys.executable, "-c", AS_ANOTHER_USER, "note", str(note), address], check=True)
        with pytest.warns(UserWarning, match=r"ray_current_cluster .*belongs to user 65534.*RAY_ADDRESS"):
            assert not join_ray("auto")
        note.unlink()
        note.write_text(address)
        assert join_ray("auto")
    assert asked == [address]


@pytest.mark.parametrize("kind", ["writable", "link", "linked twice"])
def test_a_note_that_somebody_else_could_have_written_is_not_believed(
    kind: str, recorded: Path, asked: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if kind == "writable":
            recorded.write_text(address)
            recorded.chmod(0o666)
        else:
            elsewhere = recorded.parent / "elsewhere"
            elsewhere.write_text(address)
            if kind == "link":
                recorded.symlink_to(elsewhere)
            else:
                recorded.hardlink_to(elsewhere)
        with pytest.warns(UserWarning, match="ray_current_cluster"):
            assert not join_ray("auto")
    assert not asked


@needs_two_users
def test_an_address_of_ours_where_another_user_listens_now_is_not_asked(
    recorded: Path, asked: list[str], port_of_another_user: int
) -> None:
    recorded.write_text(f"127.0.0.1:{port_of_another_user}")
    with pytest.warns(UserWarning, match="where a process of user 65534 listens"):
        assert not join_ray("auto")
    record = EmbeddedRecord(f"127.0.0.1:{port_of_another_user}", os.getpid(), 0, "", "token")
    with pytest.raises(ConnectError, match="a process of user 65534 listens"):
        connect.join_record(record)
    assert not asked
    assert join_ray(f"127.0.0.1:{port_of_another_user}"), "an address that is given is the user's own word"


@needs_two_users
def test_another_user_at_the_outward_address_keeps_nobody_from_an_embedded_broker(
    asked: list[str], port_of_another_user: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stranger has 127.0.0.1, the broker the address beside it.
    monkeypatch.setattr(connect, "node_address", lambda: "127.0.0.1")
    monkeypatch.setattr(connect, "is_driver", lambda: True)
    with socket.create_server(("127.0.0.2", port_of_another_user)):
        address = f"127.0.0.2:{port_of_another_user}"
        connect.join_record(EmbeddedRecord(address, os.getpid(), 0, "", ""))
    assert asked == [address]


def test_ray_is_not_left_to_look_for_a_cluster_itself(
    recorded: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert not join_ray("auto")
    with socket.create_server(("127.0.0.1", 0)) as server:
        recorded.write_text(f"127.0.0.1:{server.getsockname()[1]}\n")
        assert join_ray("auto")
    assert asked == [recorded.read_text().strip()]


def test_a_cluster_of_another_version_is_named_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "192.0.2.7:6379"
    metadata = {"ray_version": "3.1.4", "python_version": "3.12.1"}
    monkeypatch.setattr(connect, "_check_answers", lambda _: None)
    monkeypatch.setattr(connect, "take_token", lambda _: None)
    # As Ray does where its versions differ.
    monkeypatch.setattr(ray, "init", lambda **_: check_version_info(metadata, address))
    ours = f"this program has Ray {ray.__version__} on Python {platform.python_version()}: run it"
    with pytest.raises(
        UnsupportedVersionError, match=f"at {address} is Ray 3.1.4 on Python 3.12.1, and {ours}"
    ):
        connect._init(address)


def test_threads_join_one_after_the_other_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []
    is_joining = threading.Semaphore(1)

    def init(address: str, **_: Any) -> None:
        assert is_joining.acquire(blocking=False), "Ray refuses two at once"
        time.sleep(0.01)  # the others are here by now, or later: both has to go well
        joined.append(address)
        is_joining.release()

    with monkeypatch.context() as patch, ThreadPoolExecutor(8) as threads:
        patch.setattr(ray, "init", init)
        patch.setattr(ray, "is_initialized", lambda: bool(joined))
        patch.setattr(connect, "_check_answers", lambda _: None)
        patch.setattr(connect, "_check_joined", lambda _: None)
        assert all(threads.map(join_ray, ["head:6379"] * 8))
    assert joined == ["head:6379"]


def test_only_own_addresses_are_of_this_machine() -> None:
    assert connect._is_of_this_machine("127.0.0.1")
    assert not connect._is_of_this_machine("203.0.113.7")
    assert not connect._is_of_this_machine("no-such-host.invalid")


SETTLED = """
max_message_size: 2000
tcp_port_range: "7000"
"""


class _RunningBroker:
    """A cluster whose broker was started with settings of its own."""

    def describe_broker(self) -> dict[str, object]:
        settings = Settings(data_dir="/data", max_message_size=1000, max_block_rows=5)
        return {"data_dir": "/data", "settings": dataclasses.asdict(settings)}


@pytest.mark.parametrize("service_url", ["auto", "local"])
def test_settings_that_differ_from_those_of_the_running_broker_are_named(
    service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: Any = object()
    monkeypatch.setattr(connect, "RayCluster", _RunningBroker)
    monkeypatch.setattr(connect, "join_ray", lambda _: True)
    monkeypatch.setattr(connect, "is_driver", lambda: True)
    monkeypatch.setattr(connect, "_on_this_ray", lambda _: joined)
    monkeypatch.setattr(connect, "_join_embedded", lambda _: joined)
    file = tmp_path / "broker.yaml"
    file.write_text(SETTLED)
    monkeypatch.setenv("PULSAR_RAY_SEGMENT_SIZE_BYTES", "70000")
    with pytest.warns(UserWarning, match="has other settings") as caught:
        connect.connect(
            service_url,
            data_dir="/mine",
            config_file=file,
            settings={"max_block_rows": 5, "max_block_bytes": 2000},
        )
    (warning,) = caught
    assert warning.filename == __file__
    for said in (
        "data_dir is '/data', not '/mine'",
        "max_message_size is 1000, not 2000",
        "tcp_port_range is '0', not '7000'",
        "segment_size_bytes is 134217728, not 70000",
        "max_block_bytes is 1048576, not 2000",
    ):
        assert said in str(warning.message)
    assert "max_block_rows" not in str(warning.message)


@pytest.mark.parametrize("service_url", ["auto", "local", "192.0.2.7:6379"])
def test_a_child_forked_from_a_process_on_ray_is_told_to_be_spawned(
    service_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "ray", SimpleNamespace(is_initialized=lambda: True))
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            connect.connect(service_url, data_dir=None, config_file=None, settings={})
        except ForkedClient as error:
            code = 0 if 'get_context("spawn")' in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
