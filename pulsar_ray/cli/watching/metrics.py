"""`pulsar-ray metrics`: dashboard and alerts for Ray's Grafana and Prometheus, and where metrics are."""

from __future__ import annotations

import click

from pulsar_ray.cli.console import warn, write_line
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching.progress import progress
from pulsar_ray.errors import InvalidConfiguration
from pulsar_ray.launch.rays.ray_session import RaySession
from pulsar_ray.monitoring.dashboard import DASHBOARD_FILE, UID
from pulsar_ray.monitoring.installing import (
    OUTPUT_ROOT_VARIABLE,
    RULES_FILE,
    Effect,
    FileChange,
    RayMonitoring,
    apply,
    planned_changes,
    ray_monitoring,
    what_to_add,
)
from pulsar_ray.monitoring.services import (
    GRAFANA_VARIABLE,
    PrometheusState,
    Service,
    endpoints,
    grafana_state,
    prometheus_state,
)

DEFAULT_GRAFANA = "http://localhost:3000"
_WITH_DASHBOARD = "on the head node, if Ray's dashboard runs there"
DISABLED = "DISABLED"
"""Ray's word for: there is no Grafana."""

_output_root = click.option(
    "--output-root",
    type=click.Path(file_okay=False),
    envvar=OUTPUT_ROOT_VARIABLE,
    help=f"Where Ray's dashboard wrote its settings, if it was started with {OUTPUT_ROOT_VARIABLE}.",
)
_grafana_url = click.option(
    "--grafana-url",
    envvar=GRAFANA_VARIABLE,
    default=DEFAULT_GRAFANA,
    help=f"Where Grafana answers.  [default: ${GRAFANA_VARIABLE}, {DEFAULT_GRAFANA}]",
)


@click.group(cls=BrokerCommands)
def metrics() -> None:
    """Install the dashboard and the alerts, and show where metrics are.

    Every node of a Ray cluster exports the metrics of what runs there; docs/monitoring.md tells more.
    """


@metrics.of()
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing.")
@_output_root
@_grafana_url
def install(target: Target, dry_run: bool, output_root: str | None, grafana_url: str) -> None:
    """Put the dashboard into Ray's Grafana, and the alert rules into Ray's Prometheus.

    Run it on the head node as the user who started Ray, for each Ray session anew: Ray writes its settings of
    both when it starts. A second time changes nothing. Both need not run yet; what is missing is said.

    \b
    Example:
      pulsar-ray metrics install --dry-run
    """
    with progress("looking for Ray"):
        monitoring = ray_monitoring(target.session().directory, output_root)
    changes = planned_changes(monitoring)
    if not dry_run:
        apply(changes)
    for change in changes:
        write_line(f"{_done(change, dry_run):<15}{change.path}")
    with progress("asking Prometheus and Grafana"):
        prometheus = prometheus_state(monitoring.prometheus_url, reload=not dry_run)
        grafana = None if grafana_url == DISABLED else grafana_state(grafana_url.rstrip("/"))
    _say_prometheus(prometheus, monitoring, dry_run)
    _say_grafana(grafana, monitoring, dry_run)


def _done(change: FileChange, dry_run: bool) -> str:
    if change.effect is Effect.SAME:
        return "unchanged"
    if dry_run:
        return "would write" if change.effect is Effect.NEW else "would change"
    return "written" if change.effect is Effect.NEW else "changed"


def _say_prometheus(state: PrometheusState, monitoring: RayMonitoring, dry_run: bool) -> None:
    ours = monitoring.prometheus_yml
    if state.settings is None:
        warn(
            f"no Prometheus answers at {state.url} ({state.problem}): start it with `prometheus "
            f"--web.enable-lifecycle --config.file={ours}`"
        )
    elif state.has_rules:
        write_line(f"Prometheus at {state.url} has the alerts")
    elif state.settings.resolve() != ours.resolve():
        warn(
            f"Prometheus at {state.url} reads {state.settings}: add there `{what_to_add(monitoring)}` and "
            f"send it SIGHUP, or start it with --config.file={ours}"
        )
    elif not dry_run:
        warn(f"Prometheus at {state.url} has not read {ours} anew: restart it, or send it SIGHUP")


def _say_grafana(state: Service | None, monitoring: RayMonitoring, dry_run: bool) -> None:
    if state is None:
        warn(f"Ray is told to have no Grafana ({GRAFANA_VARIABLE}={DISABLED}), so nobody shows the dashboard")
        return
    if state.problem:
        warn(
            f"no Grafana answers at {state.url} ({state.problem}): start it with `grafana-server --homepath "
            f"/usr/share/grafana --config {monitoring.grafana_ini} web`, or give --grafana-url"
        )
    elif not dry_run:
        write_line(
            f"Grafana at {state.url} shows the dashboard within some seconds, if it was started with "
            f"{monitoring.grafana_ini}: {state.url}/d/{UID}"
        )


@metrics.of()
@_output_root
@_grafana_url
def show(target: Target, output_root: str | None, grafana_url: str) -> None:
    """Show the metrics endpoint of every node, and the files and services that use them.

    Asks each endpoint how many series of the broker it has now. The exit code is 1 if one does not answer.
    """
    with progress("asking the nodes, Prometheus and Grafana"):
        session = target.session()
        states = {state.url: state for state in endpoints([url for _, url in session.endpoints if url])}
        services = _services(session, output_root, grafana_url)
    _show("session", session.directory)
    for host, url in session.endpoints:
        state = states.get(url)
        if state is None:
            _show("endpoint", f"none on {host}: its Ray exports no metrics")
        else:
            said = (
                f"does not answer: {state.problem}"
                if state.problem
                else f"{state.series} series of the broker"
            )
            _show("endpoint", f"{state.url} on {host}: {said}")
    discovery = session.discovery_file
    _show("discovery", discovery if discovery.exists() else f"{discovery.name}, {_WITH_DASHBOARD}")
    _show("dashboard", DASHBOARD_FILE)
    _show("alert rules", RULES_FILE)
    for name, said in services.items():
        _show(name, said)
    if any(state.problem for state in states.values()):
        raise click.exceptions.Exit(1)


def _show(what: str, value: object) -> None:
    write_line(f"{what:<15}{value}")


def _services(session: RaySession, output_root: str | None, grafana_url: str) -> dict[str, str]:
    """Ask Prometheus and Grafana, and say of each how it is."""
    try:
        monitoring = ray_monitoring(session.directory, output_root)
    except InvalidConfiguration:
        return {"Prometheus": f"Ray's settings for it are {_WITH_DASHBOARD}"}
    prometheus = prometheus_state(monitoring.prometheus_url)
    if prometheus.problem:
        said = f"does not answer: {prometheus.problem}"
    else:
        said = f"reads {prometheus.settings}, {'has' if prometheus.has_rules else 'has not'} the alerts"
    found = {"Prometheus": f"{prometheus.url} {said}"}
    if grafana_url == DISABLED:
        return {**found, "Grafana": f"none, says {GRAFANA_VARIABLE}"}
    grafana = grafana_state(grafana_url.rstrip("/"))
    said = f"does not answer: {grafana.problem}" if grafana.problem else f"has it at /d/{UID} once installed"
    return {**found, "Grafana": f"{grafana.url} {said}"}
