from __future__ import annotations

from types import SimpleNamespace

import pytest
import ray

from pulsar_ray.actors import connect
from pulsar_ray.actors.connect import join_ray
from pulsar_ray.errors import ConnectError


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that is on no Ray yet, whatever other tests of this one have joined."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1", "no-such-host.invalid:6379"]
)
def test_an_address_where_nobody_listens_is_refused_without_asking_ray(address: str) -> None:
    with pytest.raises(ConnectError, match=r"no Ray cluster answers at .*ray start"):
        join_ray(address)


@pytest.mark.parametrize(
    ("address", "is_it"),
    [
        ("192.0.2.7:6379", True),
        ("192.0.2.7:6380", False),
        ("192.0.2.8:6379", False),
        ("127.0.0.1:6379", True),
        ("no-such-host.invalid:6379", False),
    ],
)
def test_a_process_that_is_on_a_ray_already_stays_there(
    address: str, is_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = SimpleNamespace(
        is_initialized=lambda: True,
        init=lambda **_: None,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="192.0.2.7:6379"),
    )
    monkeypatch.setattr(connect, "node_address", lambda: "192.0.2.7")
    monkeypatch.setattr(connect, "ray", joined)
    if is_it:
        assert join_ray(address)
    else:
        with pytest.raises(ConnectError, match=r"192\.0\.2\.7:6379 already.*Client\(\"auto\"\)"):
            join_ray(address)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_token_is_shown_to_a_cluster_however_its_address_came(
    is_given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(connect, "_check_answers", lambda _: None)
    monkeypatch.setattr(connect, "has_auth_token", lambda: True)
    monkeypatch.setattr(connect, "share_auth_mode", modes.append)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert join_ray("head:6379" if is_given else "auto")
    assert modes == ["token"]
