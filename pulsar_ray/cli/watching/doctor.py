"""`pulsar-ray doctor`: what is wrong with this machine, with or without a broker on it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import click

from pulsar_ray import compiled
from pulsar_ray.broker.health.finding import ERROR, Finding, worst_first
from pulsar_ray.broker.health.health_socket import ask_health
from pulsar_ray.broker.serving.logs.log_lines import one_line
from pulsar_ray.cli.console import say
from pulsar_ray.cli.spark_package import spark_module
from pulsar_ray.cli.target import Target, pass_target
from pulsar_ray.cli.watching.progress import progress
from pulsar_ray.config import Settings
from pulsar_ray.errors import InvalidConfiguration, PulsarException
from pulsar_ray.launch.leftovers import Leftovers, clear_leftovers, find_leftovers
from pulsar_ray.launch.rays.own_ray import open_token_file
from pulsar_ray.maintenance.doctor import diagnosis, machine
from pulsar_ray.transport.this_ray import available_memory_bytes, node_memory_bytes

FOUND_ERRORS = 3
ANSWER_S = 5.0
_COLORS = {diagnosis.OK: "green", ERROR: "red"}


@click.command()
@click.option("--data-dir", type=click.Path(file_okay=False), help="The directory whose disk is looked at.")
@click.option("--json", "as_json", is_flag=True, help="All findings, as those of `pulsar-ray health`.")
@click.option("--fix", is_flag=True, help="Remove what ended brokers have left. Nothing else is changed.")
@pass_target
def doctor(target: Target, data_dir: str | None, as_json: bool, fix: bool) -> None:
    """Say what is wrong with this machine, and what to do about it.

    Looks at the data directory's disk (room, kind, how long a durable write takes), the clock, the limits on
    files and processes, memory against max_active_actors, the versions of Python, Ray, pyarrow and Java, the
    ports, who may reach Ray, what ended brokers have left, and whether the controller of the broker that has
    a store here answers. Works with and without a broker, and joins none: whether a broker works
    `pulsar-ray health` says. Run it on each node, as the user and in the
    environment that Ray runs in.

    Exits with 3 if there is an error among the findings.

    \b
    Example:
      pulsar-ray doctor --data-dir /data/pulsar-ray
    """
    with progress("looking at this machine"):
        findings, leftovers, directory = _examined(data_dir or target.data_dir)
    if as_json:
        click.echo(json.dumps([finding.described() for finding in findings], indent=2))
    else:
        for finding in findings:
            _show(finding)
    if fix:
        clear_leftovers(directory, leftovers)
        count = len(leftovers.sessions) + leftovers.has_stale_record
        say(f"{count} leftovers are removed" if count else "there was nothing to remove")
    if any(finding.severity == ERROR for finding in findings):
        raise click.exceptions.Exit(FOUND_ERRORS)


def _examined(data_dir: str | None) -> tuple[list[Finding], Leftovers, Path]:
    """Measure, and decide: the findings, and what could be removed below which data directory."""
    wrong: InvalidConfiguration | None = None
    try:
        settings = Settings.load(data_dir=data_dir)
    except InvalidConfiguration as error:
        # With the defaults, so that the rest is looked at all the same.
        wrong, settings = error, Settings(data_dir=data_dir or Settings().data_dir)
    directory = Path(settings.data_dir)
    disk, limits = machine.measure_disk(directory), machine.measure_limits()
    memory = machine.MemoryFacts(
        node_memory_bytes(), available_memory_bytes(), machine.shared_memory_free_bytes()
    )
    actors = settings.active_actor_limit(memory.total_bytes)
    leftovers = find_leftovers(directory)
    findings = [
        *diagnosis.diagnose_settings(wrong),
        *diagnosis.diagnose_broker(str(directory), *_served(directory)),
        *diagnosis.diagnose_disk(disk, settings),
        *diagnosis.diagnose_clock(machine.is_clock_synchronized(), disk),
        *diagnosis.diagnose_limits(limits, actors),
        *diagnosis.diagnose_memory(memory, settings),
        *diagnosis.diagnose_versions(machine.measure_versions()),
        *diagnosis.diagnose_modules(compiled.describe()),
        *diagnosis.diagnose_java(*_java()),
        *diagnosis.diagnose_ports(settings, *machine.taken_ports(*settings.tcp_ports()), actors),
        *diagnosis.diagnose_ray_ports(machine.measure_ray_ports()),
        *diagnosis.diagnose_ray_doors(machine.measure_ray_doors(), open_token_file()),
        *diagnosis.diagnose_leftovers(
            str(directory),
            len(leftovers.sessions),
            leftovers.session_bytes,
            [(lost.pid, lost.data_dir, lost.has_directory) for lost in leftovers.lost_brokers],
            has_stale_record=leftovers.has_stale_record,
        ),
    ]
    return worst_first(findings), leftovers, directory


def _served(directory: Path) -> tuple[bool, str]:
    """Whether a store serves the directory, and what is wrong with its broker's controller."""
    try:
        answer = ask_health(directory, ANSWER_S)
    except PulsarException as error:
        return True, error.text
    return answer is not None, str((answer or {}).get("silent", ""))


def _java() -> tuple[str | None, str]:
    """The Java for Spark, and why there is none; None without Spark."""
    if find_spec("pyspark") is None:
        return None, ""
    try:
        found = spark_module("java").find_java()
    except PulsarException as error:
        return "", str(error)
    return f"Java {found.major} in {found.home}", ""


def _show(finding: Finding) -> None:
    remedy = f": {finding.remedy}" if finding.remedy else ""
    text = one_line(f"{finding.subject}: {finding.reason}{remedy}")
    click.echo(click.style(f"{finding.severity:8}", fg=_COLORS.get(finding.severity, "yellow")) + text)
