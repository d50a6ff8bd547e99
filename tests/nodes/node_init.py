"""Process 1 of a node: sets the node up, reaps orphans, and ends the node when its stdin ends.

Runs in new namespaces of its own, before anything else; so it needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path


def set_up(hostname: str, root: str, etc: str, disk: str, shared: str) -> None:
    """Make `root` the node's /tmp, with its disk (if one is mounted) and what all nodes share below it."""
    socket.sethostname(hostname)
    for name in ("data", "home", "shared"):
        Path(root, name).mkdir(exist_ok=True)
    if disk:
        _mount("--bind", disk, f"{root}/data")
    _mount("--bind", shared, f"{root}/shared")
    for name in ("hosts", "resolv.conf", "passwd"):
        # What is a symbolic link may lead to a place that is not there.
        if os.path.exists(f"/etc/{name}") and os.path.exists(f"{etc}/{name}"):
            _mount("--bind", f"{etc}/{name}", f"/etc/{name}")
    _mount("-t", "tmpfs", "tmpfs", "/dev/shm")
    _mount("--rbind", root, "/tmp")
    os.chdir("/tmp/home")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if os.path.exists(f"{etc}/host_key"):
        _start_sshd(etc)


def _start_sshd(etc: str) -> None:
    _mount("-t", "tmpfs", "tmpfs", "/run")
    os.mkdir("/run/sshd")
    options = {
        "HostKey": f"{etc}/host_key",
        "AuthorizedKeysFile": f"{etc}/authorized_keys",
        "PidFile": "/run/sshd.pid",
        "PermitRootLogin": "yes",
        "UsePAM": "no",
        # The files lie below directories that are anybody's.
        "StrictModes": "no",
    }
    arguments = [f"-o{name}={value}" for name, value in options.items()]
    subprocess.run(["/usr/sbin/sshd", "-f", "/dev/null", *arguments], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def reap_until_told() -> None:
    """Orphans of a pid namespace become children of its process 1, and zombies unless that waits for them."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    os.set_blocking(readable, False)
    signal.set_wakeup_fd(writable)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([0, readable], [], [])
        if 0 in ready and not os.read(0, 1):
            return
        if readable in ready:
            os.read(readable, 4096)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    set_up(**json.loads(sys.argv[1]))
    print("up", flush=True)
    reap_until_told()


if __name__ == "__main__":
    main()
