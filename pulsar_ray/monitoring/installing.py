"""Puts the dashboard and the alert rules where Ray's Grafana and Prometheus look for them.

Ray writes the settings of both when its dashboard starts, below `metrics/` in its session's directory on the
head node: a new session has them anew, and nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from pulsar_ray.errors import BrokerPersistenceError, InvalidConfiguration, NotAllowedError
from pulsar_ray.monitoring.dashboard import DASHBOARD_FILE

RULES_FILE = Path(__file__).with_name("alert_rules.yml")
INSTALLED_DASHBOARD = "pulsar_ray_grafana_dashboard.json"
INSTALLED_RULES = "pulsar_ray_alert_rules.yml"
OUTPUT_ROOT_VARIABLE = "RAY_METRICS_OUTPUT_ROOT"
"""Where Ray's dashboard writes these settings instead, if it was started with it."""
DEFAULT_PROMETHEUS = "http://localhost:9090"
_ADDED = "\n# By `pulsar-ray metrics install`.\nrule_files:\n- {}\n"


@dataclass(frozen=True)
class RayMonitoring:
    """The settings of a session: where Grafana finds dashboards, and Prometheus its own."""

    grafana_ini: Path
    dashboards: Path
    prometheus_yml: Path
    prometheus_url: str

    @property
    def rules(self) -> Path:
        """Where the alert rules go."""
        return self.prometheus_yml.with_name(INSTALLED_RULES)


class Effect(Enum):
    """How a file differs from what shall be in it."""

    SAME = "as it shall be already"
    NEW = "new"
    CHANGED = "changed"


@dataclass(frozen=True)
class FileChange:
    """A file and the text that it shall have."""

    path: Path
    text: str
    effect: Effect


def ray_monitoring(session: Path, output_root: str | None) -> RayMonitoring:
    """Find what Ray wrote in the session's directory, or in `output_root`.

    Raises InvalidConfiguration if it is not there, or not as Ray writes it.
    """
    root = Path(output_root) if output_root else session / "metrics"
    provisioning = root / "grafana" / "provisioning"
    dashboards = provisioning / "dashboards" / "default.yml"
    if not dashboards.is_file():
        raise InvalidConfiguration(
            f"Ray has written no settings for Grafana to {root}: run this on the head node, where Ray's "
            "dashboard runs (not with `ray start --include-dashboard=false`; an embedded broker's with the "
            "setting embedded_dashboard). If it was started with "
            f"{OUTPUT_ROOT_VARIABLE}, set that here too, or give --output-root"
        )
    folder = _read(dashboards, lambda settings: Path(settings["providers"][0]["options"]["path"]))
    source = provisioning / "datasources" / "default.yml"
    url = (
        _read(source, lambda settings: str(settings["datasources"][0]["url"]))
        if source.is_file()
        else DEFAULT_PROMETHEUS
    )
    return RayMonitoring(
        root / "grafana" / "grafana.ini", folder, root / "prometheus" / "prometheus.yml", url.rstrip("/")
    )


def _read(path: Path, take: Any) -> Any:
    try:
        return take(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError) as error:
        raise InvalidConfiguration(f"{path} is not as Ray writes it: {error!r}") from None


def planned_changes(monitoring: RayMonitoring) -> list[FileChange]:
    """The files that an installation writes, those included that are as they shall be.

    Raises InvalidConfiguration if Prometheus' settings cannot be added to without changing what others put
    there: it says what to add.
    """
    rules = monitoring.rules
    return [
        _change(monitoring.dashboards / INSTALLED_DASHBOARD, DASHBOARD_FILE.read_text(encoding="utf-8")),
        _change(rules, RULES_FILE.read_text(encoding="utf-8")),
        _change(monitoring.prometheus_yml, _with_rules(monitoring.prometheus_yml, rules)),
    ]


def what_to_add(monitoring: RayMonitoring) -> str:
    """The line of another prometheus.yml that takes the rules in."""
    return f"rule_files: [{_quoted(monitoring.rules)}]"


def _change(path: Path, text: str) -> FileChange:
    try:
        present = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return FileChange(path, text, Effect.NEW)
    except OSError as error:
        raise _not_written(path, error) from None
    return FileChange(path, text, Effect.SAME if present == text else Effect.CHANGED)


def _with_rules(prometheus_yml: Path, rules: Path) -> str:
    """The text of prometheus.yml with the rules in it; comments and order stay."""
    text = _read_text(prometheus_yml)
    try:
        settings = yaml.safe_load(text) or {}
        files = settings.get("rule_files")
    except (yaml.YAMLError, AttributeError) as error:
        raise InvalidConfiguration(
            f"{prometheus_yml} is no settings of Prometheus: {_one_line(error)}"
        ) from None
    if isinstance(files, list) and any(_is_same_file(prometheus_yml, entry, rules) for entry in files):
        return text
    if "rule_files" not in settings:
        return text.rstrip("\n") + "\n" + _ADDED.format(_quoted(rules))
    # A list of others, one a line: ours goes before its first entry.
    heading = re.search(
        r"^rule_files:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*(?=([ \t]*)- )", text, re.MULTILINE
    )
    if heading is None:
        raise InvalidConfiguration(
            f"{prometheus_yml} has rule_files of its own form: add {rules} to them by hand, and install again"
        )
    return f"{text[: heading.end()]}{heading[1]}- {_quoted(rules)}\n{text[heading.end() :]}"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidConfiguration(
            f"{path}, Ray's settings for Prometheus, cannot be read: {error}"
        ) from None


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _is_same_file(prometheus_yml: Path, entry: Any, rules: Path) -> bool:
    """Prometheus takes relative names from the directory of its settings."""
    return isinstance(entry, str) and (prometheus_yml.parent / entry).resolve() == rules.resolve()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def apply(changes: list[FileChange]) -> None:
    """Write what is not as it shall be.

    Each file appears whole or not at all. Raises NotAllowedError without permission, BrokerPersistenceError
    if the disk takes nothing. Files that were written before stay, and installing again goes on there.
    """
    for change in changes:
        if change.effect is not Effect.SAME:
            try:
                _write(change.path, change.text)
            except OSError as error:
                raise _not_written(change.path, error) from None


def _not_written(path: Path, error: OSError) -> NotAllowedError | BrokerPersistenceError:
    if isinstance(error, PermissionError):
        owner = _owner(path)
        who = f" ({owner})" if owner else ""
        return NotAllowedError(f"no permission for {path}: run this as the user who started Ray{who}")
    return BrokerPersistenceError(f"{path} cannot be written: {error}")


def _owner(path: Path) -> str:
    for place in (path, *path.parents):
        with contextlib.suppress(OSError, KeyError):
            return place.owner()
    return ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readable by Grafana and Prometheus, which are other users often; nobody else may write.
    mode = path.stat().st_mode & 0o755 if path.exists() else 0o644
    descriptor, staged = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            # By the descriptor: where everybody may write, another file may have that name by now.
            os.fchmod(descriptor, mode)
        os.replace(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(staged)
        raise
