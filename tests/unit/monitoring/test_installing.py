"""The dashboard and the rules go where Ray's Grafana and Prometheus look; what others wrote stays."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsar_ray.errors import BrokerPersistenceError, InvalidConfiguration, NotAllowedError
from pulsar_ray.monitoring.installing import (
    INSTALLED_DASHBOARD,
    INSTALLED_RULES,
    RULES_FILE,
    Effect,
    RayMonitoring,
    apply,
    planned_changes,
    ray_monitoring,
    what_to_add,
)

# As the dashboards of Ray 2.31 to 2.60 write them.
PROVIDERS = """
apiVersion: 1

providers:
  - name: Ray    # Default dashboards provided by OSS Ray
    folder: Ray
    type: file
    options:
      path: {}
"""
DATASOURCES = """
apiVersion: 1
datasources:
- name: Prometheus
  url: {}
  type: prometheus
  isDefault: true
  access: proxy
"""
PROMETHEUS = """# my global config
global:
  scrape_interval: 10s # Every 10 seconds.

scrape_configs:
# Scrape from each Ray node.
- job_name: 'ray'
  file_sd_configs:
  - files:
    - '/tmp/ray/prom_metrics_service_discovery.json'
"""


def write_as_ray(root: Path, dashboards: Path | None = None, url: str = "http://p:9090") -> None:
    provisioning = root / "grafana" / "provisioning"
    folder = dashboards or root / "grafana" / "dashboards"
    texts = {
        provisioning / "dashboards" / "default.yml": PROVIDERS.format(folder),
        provisioning / "datasources" / "default.yml": DATASOURCES.format(url),
        root / "prometheus" / "prometheus.yml": PROMETHEUS,
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    folder.mkdir(parents=True, exist_ok=True)


@pytest.fixture
def monitoring(tmp_path: Path) -> RayMonitoring:
    write_as_ray(tmp_path / "metrics")
    return ray_monitoring(tmp_path, None)


def install(monitoring: RayMonitoring) -> list[Effect]:
    changes = planned_changes(monitoring)
    apply(changes)
    return [change.effect for change in changes]


def prometheus_settings(monitoring: RayMonitoring) -> Any:
    return yaml.safe_load(monitoring.prometheus_yml.read_text())


def test_everything_is_where_ray_looks(tmp_path: Path, monitoring: RayMonitoring) -> None:
    assert install(monitoring) == [Effect.NEW, Effect.NEW, Effect.CHANGED]
    dashboard = tmp_path / "metrics" / "grafana" / "dashboards" / INSTALLED_DASHBOARD
    assert json.loads(dashboard.read_text())["uid"] == "pulsar-ray"
    rules = tmp_path / "metrics" / "prometheus" / INSTALLED_RULES
    assert rules.read_text() == RULES_FILE.read_text()
    assert monitoring.prometheus_yml.read_text().startswith(PROMETHEUS)
    assert prometheus_settings(monitoring)["rule_files"] == [str(rules)]
    assert monitoring.prometheus_url == "http://p:9090"
    # Grafana and Prometheus run as other users.
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in (dashboard, rules))


def test_a_second_installation_changes_nothing(monitoring: RayMonitoring) -> None:
    install(monitoring)
    before = monitoring.prometheus_yml.read_text()
    assert install(monitoring) == [Effect.SAME] * 3
    assert monitoring.prometheus_yml.read_text() == before


def test_one_that_was_cut_short_goes_on(monitoring: RayMonitoring) -> None:
    apply(planned_changes(monitoring)[:1])
    assert install(monitoring) == [Effect.SAME, Effect.NEW, Effect.CHANGED]


def test_an_older_version_is_replaced(monitoring: RayMonitoring) -> None:
    install(monitoring)
    monitoring.rules.write_text("groups: []\n")
    assert install(monitoring) == [Effect.SAME, Effect.CHANGED, Effect.SAME]
    assert monitoring.rules.read_text() == RULES_FILE.read_text()


def test_a_plan_alone_writes_nothing(monitoring: RayMonitoring) -> None:
    planned_changes(monitoring)
    assert not list(monitoring.dashboards.iterdir())
    assert [path.name for path in monitoring.prometheus_yml.parent.iterdir()] == ["prometheus.yml"]


def test_dashboards_go_to_the_directory_that_ray_was_given(tmp_path: Path) -> None:
    elsewhere = tmp_path / "shared dashboards"
    write_as_ray(tmp_path / "root", elsewhere)
    monitoring = ray_monitoring(tmp_path, str(tmp_path / "root"))
    install(monitoring)
    assert [path.name for path in elsewhere.iterdir()] == [INSTALLED_DASHBOARD]


@pytest.mark.parametrize(
    "others",
    ["rule_files:\n- a.yml\n- b.yml\n", "rule_files:   # ours\n\n  # first\n  - a.yml\n  - b.yml\n"],
)
def test_rules_of_others_stay(monitoring: RayMonitoring, others: str) -> None:
    monitoring.prometheus_yml.write_text(others + PROMETHEUS)
    install(monitoring)
    assert prometheus_settings(monitoring)["rule_files"] == [str(monitoring.rules), "a.yml", "b.yml"]
    assert set(monitoring.prometheus_yml.read_text().splitlines()) > set((others + PROMETHEUS).splitlines())
    assert install(monitoring)[2] is Effect.SAME


@pytest.mark.parametrize("entry", [INSTALLED_RULES, f"../prometheus/{INSTALLED_RULES}"])
def test_rules_that_are_named_relatively_are_known(monitoring: RayMonitoring, entry: str) -> None:
    monitoring.prometheus_yml.write_text(f"rule_files: ['{entry}']\n{PROMETHEUS}")
    assert install(monitoring)[2] is Effect.SAME


def test_rule_files_of_another_form_are_left_alone(monitoring: RayMonitoring) -> None:
    monitoring.prometheus_yml.write_text(f"rule_files: [a.yml]\n{PROMETHEUS}")
    with pytest.raises(InvalidConfiguration, match=f"add .*{INSTALLED_RULES} to them by hand"):
        planned_changes(monitoring)


def test_a_path_with_a_quote_stays_whole(tmp_path: Path) -> None:
    session = tmp_path / "it's"
    write_as_ray(session / "metrics")
    monitoring = ray_monitoring(session, None)
    install(monitoring)
    assert prometheus_settings(monitoring)["rule_files"] == [str(monitoring.rules)]
    assert yaml.safe_load(what_to_add(monitoring)) == {"rule_files": [str(monitoring.rules)]}


def test_a_session_without_a_dashboard_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"on the head node.*RAY_METRICS_OUTPUT_ROOT.*--output-root"
    ):
        ray_monitoring(tmp_path, None)


@pytest.mark.parametrize("text", ["", "providers: []", "- a", ": : :"])
def test_settings_that_ray_did_not_write_are_named(tmp_path: Path, text: str) -> None:
    write_as_ray(tmp_path / "metrics")
    path = tmp_path / "metrics" / "grafana" / "provisioning" / "dashboards" / "default.yml"
    path.write_text(text)
    with pytest.raises(InvalidConfiguration, match=r"dashboards/default.yml is not as Ray writes it"):
        ray_monitoring(tmp_path, None)


@pytest.mark.parametrize("text", ["- a list", "a: b: c"])
def test_a_broken_prometheus_yml_is_named(monitoring: RayMonitoring, text: str) -> None:
    monitoring.prometheus_yml.write_text(text)
    with pytest.raises(InvalidConfiguration, match=r"prometheus.yml is no settings of Prometheus"):
        planned_changes(monitoring)


def test_a_missing_prometheus_yml_is_named(monitoring: RayMonitoring) -> None:
    monitoring.prometheus_yml.unlink()
    with pytest.raises(InvalidConfiguration, match=r"prometheus.yml, Ray's settings for Prometheus"):
        planned_changes(monitoring)


def test_missing_permission_names_the_user(
    monitoring: RayMonitoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    # Root may write everywhere.
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(
        NotAllowedError, match=rf"as the user who started Ray \({monitoring.dashboards.owner()}\)"
    ):
        install(monitoring)
    assert not list(monitoring.dashboards.iterdir()), "what was begun is removed"


def test_a_directory_in_the_way_is_named(monitoring: RayMonitoring) -> None:
    monitoring.rules.mkdir()
    with pytest.raises(BrokerPersistenceError, match=f"{INSTALLED_RULES} cannot be written"):
        install(monitoring)


def test_the_mode_of_a_file_that_comes_in_between_stays(
    monitoring: RayMonitoring, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another user, who may write in Ray's directories, puts a link in the place of the new file."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    made = tempfile.mkstemp

    def exchanged(**where: Any) -> tuple[int, str]:
        descriptor, staged = made(**where)
        os.unlink(staged)
        os.symlink(secret, staged)
        return descriptor, staged

    monkeypatch.setattr(tempfile, "mkstemp", exchanged)
    monitoring.rules.write_text("")
    monitoring.rules.chmod(0o777)
    apply(planned_changes(monitoring)[1:2])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_nobody_else_may_write_to_what_is_installed(monitoring: RayMonitoring) -> None:
    monitoring.rules.write_text("")
    monitoring.rules.chmod(0o666)
    install(monitoring)
    assert stat.S_IMODE(monitoring.rules.stat().st_mode) == 0o644
