"""How the Ray of an embedded broker is closed to others."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from pulsar_ray.launch.rays import joined_ray, own_ray
from pulsar_ray.launch.rays.joined_ray import reaching
from pulsar_ray.launch.rays.own_ray import open_token_file, start_ray


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """The environment that each start of Ray found; none is started."""
    found: list[dict[str, Any]] = []

    def init(*, include_dashboard: bool, **_: Any) -> Any:
        found.append(
            {
                "outward": joined_ray._constants().ENABLE_RAY_CLUSTER,
                "dashboard": include_dashboard,
                **os.environ,
            }
        )
        return SimpleNamespace(address_info={"gcs_address": "127.0.0.1:1"}, dashboard_url="127.0.0.1:2")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(own_ray, "clear_ended_sessions", lambda *_: None)
    monkeypatch.setattr(joined_ray._constants(), "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv(joined_ray.LOOPBACK_VARIABLE, "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return found


@pytest.mark.parametrize(("mode", "is_known"), [(None, True), (None, False), ("disabled", True)])
def test_an_embedded_ray_keeps_to_loopback_and_asks_for_a_token(
    mode: str | None, is_known: bool, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(mode: str) -> None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)

    monkeypatch.setenv("RAY_AUTH_MODE", mode or "")
    if mode is None:
        monkeypatch.delenv("RAY_AUTH_MODE")
    monkeypatch.setattr(own_ray, "knows_tokens", lambda: is_known)
    monkeypatch.setattr(own_ray, "share_auth_mode", share)
    made: list[str] = []
    monkeypatch.setattr(own_ray, "make_token", lambda: made.append("token"))
    start_ray()
    (environment,) = started
    assert made == (["token"] if environment.get("RAY_AUTH_MODE") == "token" else [])
    assert environment["outward"] is False
    assert environment[joined_ray.LOOPBACK_VARIABLE] == "0"
    assert environment.get("RAY_AUTH_MODE") == (mode or ("token" if is_known else None))


@pytest.mark.parametrize(("is_asked", "url"), [(False, ""), (True, "http://127.0.0.1:2")])
def test_an_embedded_ray_has_a_dashboard_if_asked(
    is_asked: bool, url: str, started: list[dict[str, Any]]
) -> None:
    assert start_ray(has_dashboard=is_asked)[1] == url
    assert [found["dashboard"] for found in started] == [is_asked]


def test_ray_joins_by_loopback_only_where_the_other_listens_there_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    constants = joined_ray._constants()
    monkeypatch.setattr(constants, "ENABLE_RAY_CLUSTER", True)
    for is_alone in (True, False):
        monkeypatch.setattr(joined_ray, "takers_on_loopback", lambda _, is_alone=is_alone: [1] * is_alone)
        with reaching("127.0.0.1:6379"):
            assert constants.ENABLE_RAY_CLUSTER is not is_alone
        assert constants.ENABLE_RAY_CLUSTER is True


@pytest.mark.parametrize(
    ("mode", "above", "is_open"), [(0o600, 0o755, False), (0o644, 0o755, True), (0o644, 0o700, False)]
)
def test_a_token_that_others_may_read_is_found(
    mode: int, above: int, is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not in pytest's own directory, which nobody else may enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, above)
        path = Path(name) / "auth_token"
        path.write_text("token")
        path.chmod(mode)
        monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        assert open_token_file() == (str(path) if is_open else "")
