"""What `ray up` needs: machines with an sshd and a Python, and one where people type it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

import pulsar_ray
from tests.nodes.world import HOME, ROOT, Node, World

SSHD = "/usr/sbin/sshd"
TOOLS = ("ssh", "ssh-keygen", "rsync")
VENV = "pulsar-ray-venv"
COMMAND_S = 420.0


def check_tools() -> None:
    """Skip the test, and say why, where what `ray up` goes by is not installed or not allowed."""
    missing = [tool for tool in (SSHD, *TOOLS) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (openssh-server, rsync)")
    if os.geteuid() != 0:
        pytest.skip("only root may run an sshd that lets somebody in")


class Laptop:
    """A machine beside the nodes, with a checkout's wheel, a key for all of them, and its own home."""

    def __init__(self, world: World, wheel: Path) -> None:
        self._world = world
        self.home = world.directory / "laptop"
        self.home.mkdir()
        self.take_wheel(wheel)
        self._key = self.home / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._key)], check=True)
        self.file = self.home / "cluster.yaml"

    def take_wheel(self, wheel: Path) -> None:
        """Have this wheel in `dist`, and no other."""
        shutil.rmtree(self.home / "dist", ignore_errors=True)
        (self.home / "dist").mkdir()
        shutil.copy(wheel, self.home / "dist")

    def add_machine(self) -> Node:
        """One more machine as people have them: Python, an sshd that takes the key, and nothing of ours."""
        return self._world.add_node(ssh=self._key.with_suffix(".pub").read_text())

    def write_cluster(self, head: Node, *workers: Node, ray_options: str) -> None:
        """Put machines, user and key into cluster.yaml, as its comments say; small ones get `ray_options`."""
        text = (ROOT / "cluster.yaml").read_text()
        cluster = yaml.safe_load(text)
        provider = cluster["provider"]
        provider["head_ip"] = head.address
        provider["worker_ips"] = [worker.address for worker in workers]
        cluster["min_workers"] = cluster["max_workers"] = len(workers)
        cluster["auth"] = {"ssh_user": "root", "ssh_private_key": str(self._key)}
        for kind in ("head_start_ray_commands", "worker_start_ray_commands"):
            cluster[kind] = [
                command.replace("ray start --", f"ray start {ray_options} --") for command in cluster[kind]
            ]
        self.file.write_text(yaml.safe_dump(cluster))

    def ray(self, command: str, *arguments: str) -> str:
        """Run a command of `ray` on the cluster; what was printed. AssertionError if it fails."""
        return self.run(shlex.join(["ray", command, self.file.name, *arguments]))

    def run(self, line: str) -> str:
        """Run a line of a shell; what was printed. AssertionError if it fails."""
        # Ray asks on a terminal alone.
        answered = re.sub(r"^ray (up|down) ", r"ray \1 --yes ", line)
        with self.begin(answered) as process:
            try:
                printed, _ = process.communicate(timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                printed, _ = process.communicate()
                raise AssertionError(f"{line} ran for {COMMAND_S} s:\n{printed[-4000:]}") from None
        assert process.returncode == 0, f"{line}: {process.returncode}\n{printed[-4000:]}"
        return printed

    @contextlib.contextmanager
    def begin(self, line: str) -> Iterator[subprocess.Popen[str]]:
        """Start a line of a shell beside the cluster's file; the context's end kills it."""
        place = self._world.entering("--net", "--mount", f"--wd={self.home}")
        process = subprocess.Popen(
            [*place, "env", "-i", *self._environment(), "bash", "-c", f"exec {line}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def _environment(self) -> Sequence[str]:
        temporary = self.home / "tmp"
        temporary.mkdir(exist_ok=True)
        search = f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        return (
            *(f"HOME={self.home}", f"PATH={search}", f"TMPDIR={temporary}", "LANG=C.UTF-8", "TERM=dumb"),
            *("USER=somebody", "RAY_USAGE_STATS_ENABLED=0"),
        )


def give_python(node: Node) -> None:
    """Make the environment that set-up commands install into, with all that the wheel needs.

    The requirements are those of the Python which runs the tests: nothing is asked of an index, which no node
    could reach.
    """
    venv = f"{HOME}/{VENV}"
    node.run("python", "-m", "venv", "--without-pip", venv)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    node.run("sh", "-c", f"cd {venv}/lib/python*/site-packages && echo {packages} > tests.pth")
    # Ray's program has to be the environment's own: what it starts runs with the Python of its first line.
    node.run("sh", "-c", f"sed '1s|.*|#!{venv}/bin/python|' {sys.prefix}/bin/ray > {venv}/bin/ray")
    node.run("chmod", "+x", f"{venv}/bin/ray")
    node.run("sh", "-c", f"printf '[global]\\nno-index = true\\n' > {venv}/pip.conf; echo : > {HOME}/.bashrc")


def built_wheel(directory: Path, version: str = pulsar_ray.__version__) -> Path:
    """Build the wheel of the checkout, or of one that calls itself another version."""
    checkout = directory / "checkout"
    checkout.mkdir()
    for name in ("pulsar_ray", "spark"):
        shutil.copytree(
            ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", ".compiled.*")
        )
    for name in ("README.md", "LICENSE", "pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, checkout)
    for path in (checkout / "pyproject.toml", checkout / "pulsar_ray" / "__init__.py"):
        path.write_text(path.read_text().replace(f'"{pulsar_ray.__version__}"', f'"{version}"', 1))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", str(directory), str(checkout)),
        ],
        check=True,
        env={**os.environ, "PULSAR_RAY_PURE": "1"},
    )
    (wheel,) = directory.glob("pulsar_ray-*.whl")
    return wheel


def commands_of(path: Path) -> dict[str, list[str]]:
    """Read the commands of each section of a page."""
    sections = re.findall(r"^## (.*)\n((?:(?!^## ).*\n?)*)", path.read_text(), re.MULTILINE)
    found = {}
    for title, body in sections:
        blocks = re.findall(r"^```(?:text|sh)\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
        found[title] = [line.partition(" #")[0].strip() for line in "".join(blocks).splitlines()]
    return found
