from __future__ import annotations

import os

import pytest

from pulsar_ray_spark import session


@pytest.mark.parametrize(
    ("node", "given", "expected"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("192.0.2.1", None, None),
    ],
)
def test_sparks_page_keeps_to_loopback_where_ray_does(
    node: str, given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "node_address", lambda: node)
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    if given is not None:
        monkeypatch.setenv("SPARK_LOCAL_IP", given)
    with session._page_address():
        assert os.environ.get("SPARK_LOCAL_IP") == expected
    assert os.environ.get("SPARK_LOCAL_IP") == given
