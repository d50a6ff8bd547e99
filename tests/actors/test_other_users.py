"""An embedded broker on a machine with other users: what they prepare is refused, and they get at nothing."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.errors import UntrustedPath
from tests.other_user import ANYBODY, SOMEBODY, needs_root

pytestmark = [
    needs_root,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv of util-linux is not installed"),
]

TIMEOUT_S = 300.0
CLOSED = Path(f"/tmp/pulsar-ray-{SOMEBODY}")

_CLIENT = """
import sys
from pathlib import Path
import pulsar_ray
from pulsar_ray.launch.embedded import stop_embedded
client = pulsar_ray.Client("local", data_dir=sys.argv[1], operation_timeout_seconds=180)
try:
    producer = client.create_producer("t")
except pulsar_ray.PulsarException as error:
    print(error)
    sys.exit(3)
producer.send(b"x")
print("sent", flush=True)
sys.stdin.read()
client.close()
stop_embedded(Path(sys.argv[1]))
"""
_ATTACK = """
import os, sys
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
reached = []
for top in sys.argv[2:]:
    for directory, names, files in os.walk(top):
        reached += [os.path.join(directory, name) for name in (*names, *files)]
        for name in names:
            try:
                os.rename(os.path.join(directory, name), os.path.join(directory, name + ".moved"))
                reached.append(f"moved {name}")
            except OSError:
                pass
    try:
        os.rename(top, top + ".moved")
        reached.append(f"moved {top}")
    except OSError:
        pass
print(reached)
"""


def client_of(uid: int, data_dir: Path) -> subprocess.Popen[str]:
    """A process of a user who has nothing but a home.

    It may read everything, since this Python may lie where only root can.
    """
    user = [f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return subprocess.Popen(
        ["setpriv", *user, *reading, sys.executable, "-c", _CLIENT, str(data_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "HOME": str(data_dir.parent), "PYTHONDONTWRITEBYTECODE": "1"},
    )


def refused(data_dir: Path) -> str:
    """What SOMEBODY's program is told, who wants an embedded broker there."""
    with client_of(SOMEBODY, data_dir) as process:
        output, _ = process.communicate("", timeout=TIMEOUT_S)
    assert process.returncode == 3, output
    return output


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A data directory in a home of SOMEBODY's; ANYBODY can come as far as that."""
    if CLOSED.exists():
        pytest.skip(f"{CLOSED} is in use")
    with tempfile.TemporaryDirectory(prefix="pr-") as name:
        home = Path(name)
        home.chmod(0o755)
        os.chown(home, SOMEBODY, SOMEBODY)
        yield home / "data"
    shutil.rmtree(CLOSED, ignore_errors=True)


def make(path: Path, uid: int, mode: int) -> None:
    path.mkdir()
    os.chown(path, uid, uid)
    path.chmod(mode)


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_directory_that_another_user_made_beforehand_is_refused(data_dir: Path, mode: int) -> None:
    make(CLOSED, ANYBODY, mode)
    text = refused(data_dir)
    assert text.startswith(f"{UntrustedPath.__name__}: {CLOSED} belongs to user {ANYBODY}")
    assert list(CLOSED.iterdir()) == []


def test_a_link_in_the_place_of_the_directory_is_refused(data_dir: Path) -> None:
    elsewhere = data_dir.parent / "elsewhere"
    make(elsewhere, SOMEBODY, 0o755)
    CLOSED.symlink_to(elsewhere)
    os.chown(CLOSED, ANYBODY, ANYBODY, follow_symlinks=False)
    try:
        text = refused(data_dir)
    finally:
        CLOSED.unlink()
    assert text.startswith(f"{UntrustedPath.__name__}: {CLOSED} is a link")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("part", ["data", "run"])
def test_a_data_directory_that_another_user_made_is_refused(data_dir: Path, part: str) -> None:
    make(data_dir, ANYBODY if part == "data" else SOMEBODY, 0o777)
    if part == "run":
        make(data_dir / "run", ANYBODY, 0o777)
    text = refused(data_dir)
    assert text.startswith(f"{UntrustedPath.__name__}: ")
    assert str(data_dir) in text
    assert [path.name for path in data_dir.rglob("*")] == (["run"] if part == "run" else [])


@pytest.mark.long
def test_another_user_finds_and_moves_nothing_of_a_running_broker(data_dir: Path) -> None:
    """The directory may be there from before, and open, as long as nobody else has put anything there."""
    make(CLOSED, SOMEBODY, 0o777)
    with client_of(SOMEBODY, data_dir) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "sent\n"
        assert stat.S_IMODE(CLOSED.stat().st_mode) == 0o700
        sockets = [path for path in CLOSED.iterdir() if path.is_socket()]
        assert {path.name.partition("-")[0] for path in sockets} > {"figures"}
        assert list((CLOSED / "ray").glob("session_*/sockets/raylet"))
        attack = [sys.executable, "-c", _ATTACK, str(ANYBODY), str(CLOSED), str(data_dir)]
        attacked = subprocess.run(attack, stdout=subprocess.PIPE, text=True, check=True)
        assert attacked.stdout == "[]\n"
        client.communicate("", timeout=TIMEOUT_S)
    assert client.returncode == 0
