"""`pulsar-ray metrics` without a Ray: over a directory as its dashboard leaves it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from pulsar_ray.cli.target import Target
from pulsar_ray.cli.watching import metrics
from pulsar_ray.launch.rays.ray_session import RaySession
from pulsar_ray.monitoring.installing import INSTALLED_DASHBOARD, INSTALLED_RULES
from pulsar_ray.monitoring.services import Endpoint, PrometheusState, Service
from pulsar_ray.testing.waiting import wait_until
from tests.unit.cli.conftest import Run
from tests.unit.monitoring.test_installing import write_as_ray

P = "http://p:9090"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RaySession:
    """A session that commands join; nothing answers but its one endpoint."""
    write_as_ray(tmp_path / "metrics", url=P)
    session = RaySession(
        tmp_path, [("one", "http://one:1/metrics"), ("two", ""), ("one", "http://one:2/metrics")]
    )
    monkeypatch.setattr("pulsar_ray.launch.rays.ray_session.join_session", lambda *_, **__: session)
    monkeypatch.setattr(metrics, "endpoints", lambda urls: [Endpoint(url, series=12) for url in urls])
    prometheus(monkeypatch, PrometheusState(P, "refused"))
    grafana(monkeypatch, "refused")
    return session


def prometheus(monkeypatch: pytest.MonkeyPatch, state: PrometheusState) -> None:
    monkeypatch.setattr(metrics, "prometheus_state", lambda _, reload=False: state)


def grafana(monkeypatch: pytest.MonkeyPatch, problem: str) -> None:
    monkeypatch.setattr(metrics, "grafana_state", lambda url: Service(url, problem))


def words(text: str) -> list[str]:
    """The first words of the lines that name a file."""
    return [line.split("/")[0].strip() for line in text.splitlines() if line.endswith((".json", ".yml"))]


def test_install_says_what_it_did(run: Run, session: RaySession) -> None:
    first = run(Target(), "metrics", "install")
    assert first.exit_code == 0, first.output
    assert words(first.stdout) == ["written", "written", "changed"]
    assert words(run(Target(), "metrics", "install").stdout) == ["unchanged"] * 3


def test_a_dry_run_writes_nothing(run: Run, session: RaySession) -> None:
    done = run(Target(), "metrics", "install", "--dry-run")
    assert words(done.stdout) == ["would write", "would write", "would change"]
    names = {path.name for path in session.directory.rglob("*")}
    assert not names & {INSTALLED_DASHBOARD, INSTALLED_RULES}


def test_services_that_are_not_there_are_named_with_the_way_to_start_them(
    run: Run, session: RaySession
) -> None:
    said = run(Target(), "metrics", "install").stderr
    assert f"no Prometheus answers at {P} (refused): start it with `prometheus" in said
    assert f"--config.file={session.directory}/metrics/prometheus/prometheus.yml" in said
    assert "no Grafana answers at http://localhost:3000 (refused): start it with `grafana-server" in said
    assert f"--config {session.directory}/metrics/grafana/grafana.ini" in said


def test_services_that_have_everything_are_named(
    run: Run, session: RaySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = session.directory / "metrics" / "prometheus" / "prometheus.yml"
    prometheus(monkeypatch, PrometheusState(P, settings=ours, has_rules=True))
    grafana(monkeypatch, "")
    done = run(Target(), "metrics", "install", "--grafana-url", "http://g:3000/")
    assert done.stderr == ""
    assert f"Prometheus at {P} has the alerts" in done.stdout
    assert "http://g:3000/d/pulsar-ray" in done.stdout


def test_a_prometheus_with_other_settings_is_told_what_to_add(
    run: Run, session: RaySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    prometheus(monkeypatch, PrometheusState(P, settings=Path("/etc/prometheus/prometheus.yml")))
    said = run(Target(), "metrics", "install").stderr
    rules = session.directory / "metrics" / "prometheus" / INSTALLED_RULES
    assert f"reads /etc/prometheus/prometheus.yml: add there `rule_files: ['{rules}']`" in said


def test_a_prometheus_that_did_not_reload_is_named(
    run: Run, session: RaySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = session.directory / "metrics" / "prometheus" / "prometheus.yml"
    prometheus(monkeypatch, PrometheusState(P, settings=ours))
    assert "restart it, or send it SIGHUP" in run(Target(), "metrics", "install").stderr
    assert "SIGHUP" not in run(Target(), "metrics", "install", "--dry-run").stderr


def test_a_disabled_grafana_is_said(run: Run, session: RaySession) -> None:
    for command in ("install", "show"):
        done = run(Target(), "metrics", command, env={"RAY_GRAFANA_HOST": "DISABLED"})
        assert done.exit_code == 0
        assert "RAY_GRAFANA_HOST" in done.stdout + done.stderr


def test_a_session_without_settings_is_one_line_with_the_remedy(
    run: Run, session: RaySession, tmp_path: Path
) -> None:
    done = run(Target(), "metrics", "install", env={"RAY_METRICS_OUTPUT_ROOT": str(tmp_path / "elsewhere")})
    assert done.exit_code == 1
    assert "on the head node" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_show_names_endpoints_files_and_services(run: Run, session: RaySession) -> None:
    (session.directory / "prom_metrics_service_discovery.json").touch()
    done = run(Target(), "metrics", "show")
    assert done.exit_code == 0
    # Two nodes of one host are two.
    for port in (1, 2):
        assert f"http://one:{port}/metrics on one: 12 series of the broker" in done.stdout
    assert "none on two" in done.stdout
    assert f"discovery      {session.directory}/prom_metrics_service_discovery.json" in done.stdout
    assert f"{P} does not answer: refused" in done.stdout


def test_show_fails_if_an_endpoint_is_silent(
    run: Run, session: RaySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "endpoints", lambda urls: [Endpoint(url, "refused") for url in urls])
    done = run(Target(), "metrics", "show")
    assert done.exit_code == 1
    assert "http://one:1/metrics on one: does not answer: refused" in done.stdout


def test_show_works_on_other_nodes(run: Run, session: RaySession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pulsar_ray.launch.rays.ray_session.join_session", lambda *_, **__: RaySession(Path("/nowhere/s"), [])
    )
    done = run(Target(), "metrics", "show")
    assert done.exit_code == 0
    assert done.stdout.count("on the head node, if Ray's dashboard runs there") == 2


@pytest.mark.parametrize("command", ["install", "show"])
def test_it_says_that_it_waits(
    run: Run, session: RaySession, screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def slow(url: str, reload: bool = False) -> PrometheusState:
        wait_until(lambda: "Prometheus and Grafana" in screen.getvalue(), what="the line of progress")
        return PrometheusState(url, "refused")

    monkeypatch.setattr(metrics, "prometheus_state", slow)
    assert run(Target(), "metrics", command).exit_code == 0
