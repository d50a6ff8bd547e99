from __future__ import annotations

import pytest
import ray

from pulsar_ray.actors import connect
from pulsar_ray.actors.connect import join_ray
from pulsar_ray.errors import ConnectError


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1", "no-such-host.invalid:6379"]
)
def test_an_address_where_nobody_listens_is_refused_without_asking_ray(address: str) -> None:
    with pytest.raises(ConnectError, match=r"no Ray cluster answers at .*ray start"):
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
