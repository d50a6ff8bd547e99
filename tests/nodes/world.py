"""Several machines on this one: each node has network, mount, PID, IPC and UTS namespaces of its own.

Everything lives in a user namespace where the user is not root, and ends with the process that made it.
All addresses are of a bridge in a network namespace of its own: nothing outside can be reached or seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from pulsar_ray.testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
NETWORK = "10.77.0"
GATEWAY = f"{NETWORK}.254"
OTHER_ADDRESSES = 100
DATA_DIR = "/tmp/data"
HOME = "/tmp/home"
SHARED = "/tmp/shared"
DEADLINE_S = 30.0
_TOOLS = ("ip", "mount", "nsenter", "unshare")
_WAIT_FOR_STDIN = "import sys; print('up', flush=True); sys.stdin.read()"


def json_in(output: str) -> Any:
    """The JSON value in a command's output, among lines that Ray prints."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.startswith(("[", "{")):
            with contextlib.suppress(ValueError):
                return json.JSONDecoder().raw_decode("\n".join(lines[number:]))[0]
    raise AssertionError(f"no JSON in {output}")


class NoNamespaces(Exception):
    """This machine, or its container, does not allow what nodes are made of; says what was refused."""


class World:
    """The network between the nodes. `directory` holds each node's files, and `shared` what all of them see.

    Raises NoNamespaces.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.nodes: list[Node] = []
        self._check_machine()
        self._user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        self._holder = _held(
            ["unshare", "--net", "--mount", *self._user, sys.executable, "-c", _WAIT_FOR_STDIN]
        )
        try:
            self._make_network()
        except subprocess.CalledProcessError as error:
            self.close()
            raise NoNamespaces(f"{error.cmd} was refused: {error.stderr.strip()}") from None

    def _check_machine(self) -> None:
        missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
        if missing:
            raise NoNamespaces(f"not installed: {', '.join(missing)}")
        hidden = [path for path in (ROOT, Path(sys.prefix)) if path.is_relative_to("/tmp")]
        if hidden:
            raise NoNamespaces(f"{hidden[0]} lies below /tmp, of which each node has its own")

    def _make_network(self) -> None:
        self.ip("link", "set", "lo", "up")
        self.ip("link", "add", "bridge0", "type", "bridge")
        self.ip("addr", "add", f"{GATEWAY}/24", "dev", "bridge0")
        self.ip("link", "set", "bridge0", "up")

    def ip(self, *arguments: str) -> None:
        """Run `ip` in the network between the nodes."""
        subprocess.run(
            [*self.entering("--net"), "ip", *arguments], check=True, capture_output=True, text=True
        )

    def entering(self, *namespaces: str, pid: int | None = None) -> list[str]:
        """The beginning of a command that runs in namespaces of the world, or of the process `pid` in it."""
        user = ["--user", "--preserve-credentials"] if self._user else []
        return ["nsenter", "--target", str(pid or self._holder.pid), *user, *namespaces]

    def add_node(self, ssh: str = "") -> Node:
        """One more node, which is up; with a public key in `ssh`, an sshd lets its owner in as root."""
        node = Node(self, len(self.nodes) + 1, ssh)
        self.nodes.append(node)
        node.boot()
        return node

    def hosts(self) -> str:
        """What stands in every node's /etc/hosts: no name server is asked."""
        nodes = [f"{NETWORK}.{number} node{number}" for number in range(1, OTHER_ADDRESSES)]
        return "\n".join(["127.0.0.1 localhost", *nodes, ""])

    def close(self) -> None:
        """End everything in it."""
        for node in self.nodes:
            node.kill()
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait(DEADLINE_S)
        if self._holder.stdout is not None:
            self._holder.stdout.close()


class Node:
    """A machine: boot it, run commands on it, cut its network, kill it, boot it again with the same files."""

    def __init__(self, world: World, number: int, ssh: str) -> None:
        self._world = world
        self.number = number
        self.name = f"node{number}"
        self.address = ""
        self.directory = world.directory / self.name
        self.disk = self.directory / "disk"
        for path in (self.directory, self.disk, self.directory / "root", self.directory / "etc"):
            path.mkdir()
        (self.directory / "root").chmod(0o1777)
        (self.directory / "etc" / "hosts").write_text(world.hosts())
        # Asking for any other name fails at once.
        (self.directory / "etc" / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        if ssh:
            self._prepare_sshd(ssh)
        self._boots = 0
        self._unshare: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def _prepare_sshd(self, public_key: str) -> None:
        etc = self.directory / "etc"
        (etc / "authorized_keys").write_text(public_key)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "host_key")], check=True
        )
        # sshd, and `~` in what it starts, take the home directory from here.
        lines = Path("/etc/passwd").read_text().splitlines()
        fields = [line.split(":") for line in lines]
        users = [[*each[:5], HOME, "/bin/bash"] if each[0] == "root" else each for each in fields]
        (etc / "passwd").write_text("".join(f"{':'.join(each)}\n" for each in users))

    @property
    def is_up(self) -> bool:
        return self._unshare is not None

    def boot(self, address: str | None = None, *, mounts_disk: bool = True) -> None:
        """Start the machine, with its address or another one, and its disk at DATA_DIR or without.

        Raises NoNamespaces.
        """
        assert self._unshare is None, f"{self.name} is up"
        self.address = address or f"{NETWORK}.{self.number}"
        self._boots += 1
        self._unshare = _held(
            [
                *self._world.entering("--net", "--mount"),
                *("unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", sys.executable, "-I", str(Path(__file__).with_name("node_init.py"))),
                json.dumps(
                    {
                        "hostname": self.name,
                        "root": str(self.directory / "root"),
                        "etc": str(self.directory / "etc"),
                        "disk": str(self.disk) if mounts_disk else "",
                        "shared": str(self._world.shared),
                    }
                ),
            ]
        )
        (init,) = psutil.Process(self._unshare.pid).children()
        self._pid = init.pid
        try:
            self._connect()
        except subprocess.CalledProcessError as error:
            raise NoNamespaces(f"{error.cmd} was refused: {error.stderr.strip()}") from None

    @property
    def _link(self) -> str:
        """The outer end of its cable; the one of a former boot may still be about to go."""
        return f"n{self.number}b{self._boots}"

    def _connect(self) -> None:
        world = self._world
        peer = ["type", "veth", "peer", "name", "eth0", "netns", str(self._pid)]
        world.ip("link", "add", self._link, *peer)
        world.ip("link", "set", self._link, "master", "bridge0", "up")
        inside = [*world.entering("--net", pid=self._pid), "ip"]
        # The same card in every life: the others have noted which one has the address.
        card = f"02:00:00:00:00:{self.number:02x}"
        for arguments in (
            ["link", "set", "eth0", "address", card, "up"],
            ["addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["route", "add", "default", "via", GATEWAY],
        ):
            subprocess.run([*inside, *arguments], check=True, capture_output=True, text=True)

    def other_address(self) -> str:
        """An address that the node does not have: for the next boot."""
        return f"{NETWORK}.{self.number + OTHER_ADDRESSES}"

    def cut(self) -> None:
        """Nothing reaches the node or leaves it any more, and nobody is told."""
        self._world.ip("link", "set", self._link, "nomaster")

    def heal(self) -> None:
        """Undo `cut`."""
        self._world.ip("link", "set", self._link, "master", "bridge0")

    def kill(self) -> None:
        """SIGKILL to everything on it; its files stay. After `cut` it is as if the power had gone."""
        if self._unshare is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._unshare.wait(DEADLINE_S)
        for stream in (self._unshare.stdin, self._unshare.stdout):
            assert stream is not None
            stream.close()
        self._unshare = None

    def run(
        self, *command: str, timeout_s: float = 120.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, with the package's programs on its PATH; AssertionError if it fails."""
        with self.start(*command) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                kill_started(process)
                output, _ = process.communicate()
                raise AssertionError(f"{command} on {self.name} ran for {timeout_s} s:\n{output}") from None
        done = subprocess.CompletedProcess(command, process.returncode, output)
        ended = f"{command} on {self.name} ended with {done.returncode}"
        assert not check or done.returncode == 0, f"{ended}:\n{output}"
        return done

    def ask(self, program: str, *arguments: str, timeout_s: float = 120.0) -> Any:
        """Run a program in the checkout's Python on the node; what it gives to its function `answer`.

        What Ray prints into the program's output does no harm.
        """
        command = (sys.executable, "-c", _ANSWER + program, *arguments)
        lines = self.run(*command, timeout_s=timeout_s).stdout.splitlines()
        answers = [line.removeprefix(_MARK) for line in lines if line.startswith(_MARK)]
        assert answers, f"no answer of {program} on {self.name}: {lines}"
        return json.loads(answers[-1])

    @contextlib.contextmanager
    def start(
        self, *command: str, output: int | IO[Any] = subprocess.PIPE, **variables: str
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a command on the node, with pipes or its output in a file; the context's end kills it."""
        assert self._unshare is not None, f"{self.name} is down"
        process = subprocess.Popen(
            [
                *self._world.entering("--net", "--mount", "--uts", "--ipc", "--pid", "--wd", pid=self._pid),
                *command,
            ],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**_ENVIRONMENT, **variables},
        )
        with process:
            try:
                yield process
            finally:
                kill_started(process)


_MARK = "answer: "
_ANSWER = f"""
def answer(value):
    import json
    print({_MARK!r} + json.dumps(value), flush=True)
"""
_ENVIRONMENT = {
    "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}",
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": str(ROOT),
    "PULSAR_RAY_DATA_DIR": DATA_DIR,
    "RAY_USAGE_STATS_ENABLED": "0",
    # As the documentation advises: actors that start are not starved by programs that compute.
    "RAY_worker_niceness": "0",
}


def kill_started(process: subprocess.Popen[str]) -> None:
    """SIGKILL to what `Node.start` started: nsenter's child, which it would leave behind."""

    def has_ended() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children():
                child.kill()
        return process.poll() is not None

    wait_until(has_ended, DEADLINE_S, f"the end of {process.args!r}")


def _held(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process that says "up" and then lives until its stdin ends. Raises NoNamespaces."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() == b"up\n":
        process.stderr.close()
        return process
    _, refusal = process.communicate()
    raise NoNamespaces(f"{' '.join(command[:8])} ... was refused: {refusal.decode().strip()}")
