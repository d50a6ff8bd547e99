"""Each alert names metrics that exist, and fires when it shall."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulsar_ray.monitoring.installing import RULES_FILE
from tests.unit.monitoring.queries import metrics_of, unknown_names

CASES_FILE = Path(__file__).with_name("alert_rules_test.yml")
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
]


def expectations(alert: str) -> list[list[Any]]:
    """What the cases expect of an alert, each time that they look."""
    return [
        look["exp_alerts"]
        for case in yaml.safe_load(CASES_FILE.read_text())["tests"]
        for look in case["alert_rule_test"]
        if look["alertname"] == alert
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_metrics_and_labels_of_the_catalogue(rule: dict[str, Any]) -> None:
    assert unknown_names(rule["expr"]) == []
    assert metrics_of(rule["expr"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert "{{" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"].endswith(".")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(rule: dict[str, Any]) -> None:
    looks = expectations(rule["alert"])
    assert any(looks), "add a case to alert_rules_test.yml that makes it fire"
    assert not all(looks), "add a case to alert_rules_test.yml in which it does not fire"


@pytest.mark.long
def test_prometheus_takes_the_rules_and_each_fires_as_the_cases_say() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not there: apt-get install prometheus")
    for arguments in (["check", "rules", str(RULES_FILE)], ["test", "rules", str(CASES_FILE)]):
        done = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
