"""The commands about permissions, on a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pulsar_ray.admin.admin import Admin
from pulsar_ray.cli.target import Target
from pulsar_ray.testing.stub_cluster import StubCluster
from tests.unit.cli.conftest import Run

CLUSTERS: list[StubCluster] = []


class StubTarget(Target):
    def admin(self) -> Admin:
        return Admin._on(CLUSTERS[-1])


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    CLUSTERS.append(StubCluster(tmp_path))
    yield StubTarget()
    CLUSTERS.pop().close()


@pytest.mark.parametrize(("group", "subject"), [("namespaces", "public/default"), ("topics", "orders")])
def test_what_is_granted_is_shown_until_it_is_revoked(
    run: Run, target: Target, group: str, subject: str
) -> None:
    assert run(target, "topics", "create", "orders").exit_code == 0
    given = ("--role", "shop", "--actions", "produce, consume")
    assert run(target, group, "grant-permission", subject, *given).exit_code == 0
    shown = run(target, group, "permissions", subject).stdout
    assert json.loads(shown) == {"shop": ["produce", "consume"]}
    assert run(target, group, "revoke-permission", subject, "--role", "shop").exit_code == 0
    assert run(target, group, "permissions", subject).stdout == "{}\n"
    wrong = run(target, group, "grant-permission", subject, "--role", "shop", "--actions", "eat")
    assert wrong.exit_code == 1
    assert "'eat' is no action" in wrong.stderr


def test_roles_of_subscriptions_are_granted_and_revoked(run: Run, target: Target) -> None:
    of = ("public/default", "-s", "s")
    assert run(target, "namespaces", "grant-subscription-permission", *of, "--roles", "a,b").exit_code == 0
    shown = run(target, "namespaces", "subscription-permissions", "public/default").stdout
    assert json.loads(shown) == {"s": ["a", "b"]}
    for role in ("a", "b"):
        done = run(target, "namespaces", "revoke-subscription-permission", *of, "--role", role)
        assert done.exit_code == 0, done.stderr
    assert run(target, "namespaces", "subscription-permissions", "public/default").stdout == "{}\n"
