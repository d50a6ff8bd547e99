"""`pulsar-ray install-service`: systemd starts Ray and the broker when a machine boots."""

from __future__ import annotations

import getpass
import os
import pwd
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.config import Settings

SYSTEMD = "/etc/systemd/system"
HEAD = "head"
WORKER = "worker"
START_S = 600
"""The longest start of Ray and the broker.

A machine that boots is busy.
"""
STOP_S = 120
HEAD_OPTIONS = ("--port=6379", "--dashboard-host=127.0.0.1")

_UNIT = """\
# Written by `pulsar-ray install-service`, which writes it anew.
[Unit]
Description={description}
Wants=network-online.target
After=network-online.target time-sync.target
# A store is never begun below a mount that is not there yet.
RequiresMountsFor={data_dir}
# A worker tries for as long as its head takes to boot.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
WorkingDirectory=~
Environment={environment}
ExecStart={ray_start}
{broker}Restart=always
RestartSec=5
TimeoutStartSec={start_s}
TimeoutStopSec={stop_s}
# SIGTERM for `ray start --block`, which ends Ray's processes; what is left then is killed.
KillMode=mixed
# What one actor takes too much ends that actor, and not Ray.
OOMPolicy=continue
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Service:
    """One machine's part of a cluster that comes up by itself.

    `address` is the head's, for a worker.
    """

    user: str
    programs: Path
    """Where `ray` and `pulsar-ray` are."""
    data_dir: Path
    address: str = ""
    ray_options: Sequence[str] = ()
    expect_stores: int | None = None

    @property
    def name(self) -> str:
        """Return the name of the service for systemd."""
        return f"pulsar-ray-{WORKER if self.address else HEAD}"

    def unit(self) -> str:
        """Return the text of the unit file."""
        ray, pulsar_ray = str(self.programs / "ray"), str(self.programs / "pulsar-ray")
        place = [f"--address={self.address}"] if self.address else ["--head", *HEAD_OPTIONS]
        # Of options that are given twice, Ray takes the last.
        start = [ray, "start", "--block", *place, *self.ray_options]
        broker = ""
        if not self.address:
            expected = [] if self.expect_stores is None else [f"--expect-stores={self.expect_stores}"]
            wait = f"--wait-for-ray={START_S // 2}"
            broker = (
                "# A broker that does not start leaves Ray up, for `pulsar-ray start` by hand.\n"
                f"ExecStartPost=-{_words([pulsar_ray, 'start', wait, *expected], command=True)}\n"
                f"ExecStop=-{_words([pulsar_ray, 'stop'], command=True)}\n"
            )
        search = os.pathsep.join(
            [str(self.programs), str(self.programs.parent / "jdk" / "bin"), "/usr/local/bin:/usr/bin:/bin"]
        )
        environment = [
            f"PATH={search}",
            f"PULSAR_RAY_DATA_DIR={self.data_dir}",
            # Ray gives its workers niceness 15: on a busy machine the broker would start and restart late.
            "RAY_worker_niceness=0",
        ]
        return _UNIT.format(
            description="Ray worker with a store of pulsar_ray"
            if self.address
            else "Ray head with the pulsar_ray broker",
            data_dir=_words([str(self.data_dir)]),
            user=self.user,
            environment=_words(environment),
            ray_start=_words(start, command=True),
            broker=broker,
            start_s=START_S,
            stop_s=STOP_S,
        )


def _words(words: Sequence[str], *, command: bool = False) -> str:
    """Write words as systemd reads them.

    They are quoted, and have no specifiers, nor variables of a command, in them.
    """
    return " ".join(_word(word.replace("$", "$$") if command else word) for word in words)


def _word(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if set(word) & set(" \t'\"\\;") else escaped


def _check(service: Service) -> None:
    """Refuse what systemd or Ray would refuse at every start.

    Raises UsageError.
    """
    host, _, port = service.address.rpartition(":")
    if service.address and not (host and port.isdigit()):
        raise click.BadParameter(f"{service.address} is no HOST:PORT", param_hint="--address")
    for program in (service.programs / "ray", service.programs / "pulsar-ray"):
        if not os.access(program, os.X_OK):
            raise click.UsageError(
                f"{program} is no program: call the `pulsar-ray` of the environment that has both"
            )
    for word in (str(service.data_dir), service.address, *service.ray_options):
        if not word.isprintable():
            raise click.UsageError(f"{word!r} has characters that no unit file can have")


def _somebody() -> str:
    """Name who typed the command, behind sudo too."""
    return os.environ.get("SUDO_USER") or getpass.getuser()


@click.command("install-service")
@click.argument("part", type=click.Choice([HEAD, WORKER]))
@click.option("--address", metavar="HOST:PORT", help="Of the head's Ray, for a worker.")
@click.option("--data-dir", type=click.Path(file_okay=False), help="Where this machine keeps everything.")
@click.option("--user", help="Whom Ray runs as.  [default: who types this, behind sudo too]")
@click.option("--expect-stores", type=click.IntRange(min=0), help="As of `pulsar-ray start`, for a head.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=SYSTEMD,
    show_default=True,
    help="Where systemd looks for units.",
)
@click.option("--show", is_flag=True, help="Print the unit, and write nothing.")
@click.argument("ray_options", nargs=-1, type=click.UNPROCESSED)
@pass_target
def install_service(
    target: Target,
    part: str,
    address: str | None,
    data_dir: str | None,
    user: str | None,
    expect_stores: int | None,
    directory: Path,
    show: bool,
    ray_options: tuple[str, ...],
) -> None:
    """Have systemd start Ray and the broker at boot, on a head or a worker.

    A machine that was switched off comes back with its part of the cluster, and nobody has to do anything.
    Options of `ray start` go behind `--`. Run it again after an update that moved the programs; what a
    cluster of `ray up` starts itself needs no service, and should have none.

    \b
    Examples:
      sudo pulsar-ray install-service head --expect-stores 3
      sudo pulsar-ray install-service worker --address 192.0.2.10:6379 -- --num-cpus=8
    """
    if (part == WORKER) != bool(address):
        raise click.UsageError(
            "a worker needs --address, of the head's Ray" if part == WORKER else "a head has no --address"
        )
    if part == WORKER and expect_stores is not None:
        raise click.UsageError("--expect-stores is the head's")
    name = user or _somebody()
    try:
        home = pwd.getpwnam(name).pw_dir
    except KeyError:
        raise click.BadParameter(f"{name} is no user of this machine", param_hint="--user") from None
    named = data_dir or target.data_dir or os.environ.get("PULSAR_RAY_DATA_DIR")
    # Settings would take the home directory of root, behind sudo.
    path = Path(Settings.load(data_dir=named).data_dir if named else f"{home}/.pulsar-ray")
    service = Service(name, Path(sys.executable).parent, path, address or "", ray_options, expect_stores)
    _check(service)
    if show:
        for line in service.unit().splitlines():
            write_line(line)
        return
    file = directory / f"{service.name}.service"
    try:
        file.write_text(service.unit())
    except OSError as error:
        raise click.ClickException(
            f"{file} cannot be written: {error.strerror}; say `sudo`, or --directory"
        ) from None
    write_line(f"wrote {file}: Ray runs as {name} and stores in {path}")
    say(f"once:  {shlex.join([str(service.programs / 'pulsar-ray'), 'init-store', str(path)])}  as {name}")
    say(f"then:  systemctl daemon-reload && systemctl enable --now {service.name}")
