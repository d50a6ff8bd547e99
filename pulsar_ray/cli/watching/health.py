"""`pulsar-ray health`: whether the broker works, for people and probes."""

from __future__ import annotations

import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import click

from pulsar_ray.broker.health.finding import ERROR, WARNING, Finding, HealthReport
from pulsar_ray.broker.health.health_socket import ask_health
from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.console import write_line
from pulsar_ray.cli.parameters import FiniteRange
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import progress
from pulsar_ray.config import Settings
from pulsar_ray.errors import ConnectError, NotConnected, PulsarException
from pulsar_ray.launch.noted_cluster import environment_cluster, noted_cluster

NO_BROKER = 1
UNHEALTHY = 3
ANSWER_S = 5.0
"""The controller itself gives everybody a second, and may be busy."""


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="Of the embedded broker that is meant.")
@click.option("--json", "as_json", is_flag=True, help="The whole report: healthy, stores, running, findings.")
@click.option(
    "--this-node",
    is_flag=True,
    help="Ask only whether this machine's store answers, and say only what is wrong on this machine.",
)
@click.option("--strict", is_flag=True, help="Exit with 3 for warnings, too.")
@click.option(
    "--timeout-seconds",
    type=FiniteRange(0.1, 3600),
    default=ANSWER_S,
    show_default=True,
    help="How long the controller may take to answer.",
)
@pass_target
def health(
    target: Target,
    data_dir: str | None,
    as_json: bool,
    this_node: bool,
    strict: bool,
    timeout_seconds: float,
) -> None:
    """Say what does not work, with the node, store or partition and the reason.

    Asks everything that runs at the same time, for a second at most; wakes nothing, starts nothing, writes
    nothing. An error is something that does not work now; a warning is what will not for long, as a disk that
    fills up, or what stands still, as a subscription that is stuck.

    Exits with 0 if all works, 1 if no broker runs or its controller does not answer, 3 if something does not
    work.

    With --this-node it asks over the socket of this machine's store, never over Ray. A probe of a container
    takes that: a machine is not to be restarted, or taken out of its service, because another one is away.

    \b
    Examples:
      pulsar-ray health
      pulsar-ray health --this-node --data-dir /data/pulsar-ray
      pulsar-ray health --json | jq -r '.findings[].reason'
    """
    try:
        with progress("asking the broker"):
            report, code = _asked(target, data_dir, timeout_seconds, this_node=this_node), UNHEALTHY
    except PulsarException as error:
        report, code = _no_answer(error.text), NO_BROKER
    if as_json:
        click.echo(json.dumps(report.described(), indent=2))
    else:
        _show(report)
    if report.errors or (strict and report.warnings):
        raise click.exceptions.Exit(code)


def _asked(target: Target, data_dir: str | None, timeout_s: float, *, this_node: bool) -> HealthReport:
    """Ask the store of this machine, or else the controller. Raises ConnectError, Timeout."""
    named = data_dir or target.data_dir
    path = Path(Settings.load(data_dir=named).data_dir)
    if this_node:
        return _of_this_node(path, timeout_s)
    described = _asked_here(target.service_url, path, bool(named), timeout_s)
    if described is None:
        # Loads Ray: that alone takes most of a second.
        from pulsar_ray.launch.connect import join_running  # noqa: PLC0415
        from pulsar_ray.launch.lost_catalog import asked_controller  # noqa: PLC0415
        from pulsar_ray.transport.ray_cluster import RayCluster  # noqa: PLC0415

        if join_running(target.service_url, path, is_named=bool(named)):
            described = asked_controller(partial(RayCluster().health, timeout_s))
    if described is None:
        raise ConnectError(f"no broker runs here, and none serves {path}")
    return HealthReport.of(described)


def _of_this_node(path: Path, timeout_s: float) -> HealthReport:
    """Ask this machine's store alone. Raises ConnectError if none answers, Timeout.

    That the controller is silent, as while its machine restarts, is nothing that this machine could mend.
    """
    answer = ask_health(path, timeout_s)
    if answer is None and path.is_dir() and not os.access(path, os.X_OK):
        raise ConnectError(f"{path} is closed to this user: ask as the one whom Ray runs as")
    if answer is None:
        raise ConnectError(f"no store answers in {path}: Ray does not run here, or this is no store yet")
    if "silent" in answer:
        return HealthReport([Finding(WARNING, "broker", "", "", answer["silent"])], 1, 0)
    whole, host = HealthReport.of(answer["report"]), socket.gethostname()
    return HealthReport([each for each in whole.findings if each.host == host], whole.stores, whole.running)


def _asked_here(service_url: str, path: Path, is_named: bool, timeout_s: float) -> dict[str, Any] | None:
    """The answer of this machine's store; None if another broker is meant.

    Raises NotConnected if the store answers and the controller does not.
    """
    answer = ask_health(path, timeout_s) if service_url in ("auto", "local") else None
    if answer is None:
        return None
    cluster = environment_cluster() or noted_cluster()
    if service_url == "auto" and not is_named and cluster not in ("", answer["address"]):
        return None  # the broker of another Ray, as `status` would choose
    if "silent" in answer:
        raise NotConnected(answer["silent"])
    report: dict[str, Any] = answer["report"]
    return report


def _no_answer(reason: str) -> HealthReport:
    finding = Finding(ERROR, "broker", "", "", reason, "`pulsar-ray doctor` looks for the cause")
    return HealthReport([finding], 0, 0)


def _show(report: HealthReport) -> None:
    colors = {ERROR: "red"}
    for finding in report.findings:
        click.secho(one_line(finding.text()), fg=colors.get(finding.severity, "yellow"))
    if report.is_healthy:
        stores = f"{report.stores} stores answer" if report.stores != 1 else "1 store answers"
        write_line(f"healthy: {stores}, {report.running} partitions and subscriptions run")
