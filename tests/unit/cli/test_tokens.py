"""`pulsar-ray tokens`: what one command makes, the next one takes."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path

import pytest

from pulsar_ray.cli.target import Target
from tests.unit.cli.conftest import Run


def test_a_secret_key_signs_and_checks(run: Run, tmp_path: Path) -> None:
    key, token = tmp_path / "secret.key", tmp_path / "token"
    assert run(Target(), "tokens", "create-secret-key", "--output", str(key)).exit_code == 0
    assert len(key.read_bytes()) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    made = run(
        Target(), "tokens", "create", "-sk", f"file://{key}", "-s", "shop", "-e", "52w", "-hs", "kid=1"
    )
    token.write_text(made.stdout)
    shown = run(Target(), "tokens", "show", "-f", str(token)).stdout.splitlines()
    assert json.loads(shown[0]) == {"alg": "HS256", "kid": "1"}
    assert shown[1] == "---"
    assert json.loads(shown[2])["sub"] == "shop"
    for given, options in (
        ((made.stdout.strip(),), {}),
        (("-i",), {"input": made.stdout}),
        (("-f", str(token)), {}),
        ((), {"env": {"TOKEN": made.stdout}}),
    ):
        done = run(Target(), "tokens", "validate", "--secret-key", str(key), *given, **options)
        assert json.loads(done.stdout)["sub"] == "shop", done.stderr


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_key_pair_signs_and_checks(run: Run, tmp_path: Path, algorithm: str) -> None:
    private, public = str(tmp_path / "private"), str(tmp_path / "public")
    pair = ("--output-private-key", private, "--output-public-key", public)
    assert run(Target(), "tokens", "create-key-pair", "-a", algorithm, *pair).exit_code == 0
    assert stat.S_IMODE(Path(private).stat().st_mode) == 0o600
    made = run(Target(), "tokens", "create", "-pk", private, "-s", "shop", "-a", algorithm).stdout.strip()
    done = run(Target(), "tokens", "validate", "-pk", public, "-a", algorithm, made)
    assert json.loads(done.stdout) == {"sub": "shop"}
    other = {"RS256": "ES256", "ES256": "RS256"}[algorithm]
    refused = run(Target(), "tokens", "validate", "-pk", public, "-a", other, made)
    assert refused.exit_code == 1
    assert "--public-key" in refused.stderr


def test_a_secret_in_base64_is_for_a_data_url(run: Run) -> None:
    text = run(Target(), "tokens", "create-secret-key", "--base64").stdout.strip()
    assert len(base64.b64decode(text)) == 32
    made = run(Target(), "tokens", "create", "--secret-key", f"data:;base64,{text}", "--subject", "shop")
    assert made.exit_code == 0


def test_an_expired_token_fails_and_says_so(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "key"
    run(Target(), "tokens", "create-secret-key", "-o", str(key))
    made = run(Target(), "tokens", "create", "-sk", str(key), "-s", "shop", "-e", "0s").stdout.strip()
    done = run(Target(), "tokens", "validate", "-sk", str(key), made)
    assert done.exit_code == 1
    assert "the token has expired" in done.stderr
    assert done.stdout == ""


def test_a_key_that_is_there_stays(run: Run, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"old")
    done = run(Target(), "tokens", "create-secret-key", "-o", str(key))
    assert done.exit_code == 1
    assert "is there already" in done.stderr
    assert key.read_bytes() == b"old"


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "-s", "shop"),
        ("create", "-s", "shop", "-sk", "a", "-pk", "b"),
        ("create", "-s", " ", "-sk", "a"),
        ("create", "-s", "shop", "-sk", "a", "-hs", "kid"),
        ("create", "-s", "shop", "-sk", "a", "-hs", "alg=none"),
        ("create", "-s", "shop", "-sk", "a", "-a", "none"),
        ("create", "-s", "shop", "-sk", "a", "-e", "soon"),
        ("validate", "x.y.z"),
        ("show",),
        ("create-key-pair",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_said(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(Target(), "tokens", *arguments, env={"TOKEN": ""})
    assert done.exit_code == 2, done.stderr
    assert done.stdout == ""


def test_a_missing_key_is_named(run: Run) -> None:
    done = run(Target(), "tokens", "create", "-s", "shop", "-sk", "/nowhere/key")
    assert done.exit_code == 1
    assert "--secret-key: '/nowhere/key' cannot be read" in done.stderr
