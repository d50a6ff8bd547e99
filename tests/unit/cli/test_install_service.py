"""`pulsar-ray install-service`: what it writes, and what systemd says to that."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pulsar_ray.cli.install_service import Service
from pulsar_ray.cli.main import main

USER = getpass.getuser()
PROGRAMS = Path("/opt/venv/bin")
ODD = Path("/data/a 'b' $HOME 100%n")


def install(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["install-service", *arguments])


def read(text: str) -> RawConfigParser:
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def test_a_head_starts_ray_then_the_broker_and_stops_the_broker_first(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    done = install(
        *("head", "--expect-stores", "3", "--data-dir", str(data_dir), "--directory", str(tmp_path)),
        *("--", "--num-cpus=8"),
    )
    assert done.exit_code == 0, done.output
    assert "systemctl enable --now pulsar-ray-head" in done.output
    service = read((tmp_path / "pulsar-ray-head.service").read_text())["Service"]
    assert " start --block --head --port=6379 " in service["ExecStart"]
    assert service["ExecStart"].endswith(" --num-cpus=8")
    # Ray stays up where the broker does not start, for somebody to look.
    assert service["ExecStartPost"].startswith("-/")
    assert "pulsar-ray start --wait-for-ray=" in service["ExecStartPost"]
    assert service["ExecStartPost"].endswith("--expect-stores=3")
    assert service["ExecStop"].endswith("/pulsar-ray stop")
    assert service["User"] == USER
    assert f"PULSAR_RAY_DATA_DIR={data_dir}" in service["Environment"]
    assert not data_dir.exists(), "a store is made by init-store, on a volume that is mounted"


def test_a_worker_joins_its_head_and_starts_no_broker(tmp_path: Path) -> None:
    done = install("worker", "--address", "192.0.2.10:6379", "--directory", str(tmp_path))
    assert done.exit_code == 0, done.output
    service = read((tmp_path / "pulsar-ray-worker.service").read_text())["Service"]
    assert service["ExecStart"].endswith("/ray start --block --address=192.0.2.10:6379")
    assert "ExecStartPost" not in service
    assert service["Restart"] == "always"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker"], "a worker needs --address"),
        (["head", "--address", "192.0.2.10:6379"], "a head has no --address"),
        (["worker", "--address", "192.0.2.10:6379", "--expect-stores", "2"], "--expect-stores is the head's"),
        (["worker", "--address", "192.0.2.10"], "192.0.2.10 is no HOST:PORT"),
        (["head", "--data-dir", "/data/a\nExecStart=evil"], "no unit file can have"),
        (["head", "--user", "nobody-of-that-name"], "nobody-of-that-name is no user of this machine"),
        (["middle"], "'middle' is not one of"),
    ],
)
def test_wrong_usage_is_said_and_writes_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = install(*arguments, "--directory", str(tmp_path))
    assert done.exit_code == 2
    assert said in done.output
    assert list(tmp_path.iterdir()) == []


def test_an_environment_without_the_programs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    done = install("head", "--directory", str(tmp_path))
    assert done.exit_code == 2
    assert f"{tmp_path}/ray is no program" in "".join(done.output.splitlines())
    assert list(tmp_path.iterdir()) == []


def test_behind_sudo_it_is_who_typed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "daemon")
    monkeypatch.delenv("PULSAR_RAY_DATA_DIR", raising=False)
    shown = install("head", "--show", "--directory", str(tmp_path))
    service = read(shown.output)["Service"]
    assert service["User"] == "daemon"
    assert "PULSAR_RAY_DATA_DIR=/usr/sbin/.pulsar-ray" in service["Environment"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("address", ["", "192.0.2.10:6379"])
def test_systemd_reads_what_was_written(tmp_path: Path, address: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed here")
    for name in ("ray", "pulsar-ray"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    service = Service(USER, tmp_path, ODD, address, ['--resources={"a b": 1}'], 3)
    file = tmp_path / f"{service.name}.service"
    file.write_text(service.unit())
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True, check=False
    )
    about = [line for line in checked.stderr.splitlines() if service.name in line]
    assert (checked.returncode, about) == (0, [])


def test_words_with_a_meaning_for_systemd_lose_it() -> None:
    unit = Service("me", PROGRAMS, ODD, "", ['--resources={"a": 1}', "--labels=$x"]).unit()
    service = read(unit)["Service"]
    assert '"--resources={\\"a\\": 1}"' in service["ExecStart"]
    assert "--labels=$$x" in service["ExecStart"]
    assert "\"PULSAR_RAY_DATA_DIR=/data/a 'b' $HOME 100%%n\"" in service["Environment"]
