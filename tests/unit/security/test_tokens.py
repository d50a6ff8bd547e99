"""Tokens are taken if their own key signed them, by its own algorithm, and while they last."""

from __future__ import annotations

import base64
import hmac
import json
import sys
from pathlib import Path
from typing import Any

import jwt
import pytest

from pulsar_ray.errors import AuthenticationError, InvalidConfiguration, OperationNotSupported
from pulsar_ray.security.keys import ALGORITHMS, CURVES, SECRET_BYTES, new_key_pair, new_secret
from pulsar_ray.security.tokens import TokenRules, create_token, show_token, signing_key

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[bytes, bytes]]:
    return {name: new_key_pair(name) for name in ("RS256", "ES256")}


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def _signed_by_hmac(key: bytes, *parts: Any) -> str:
    """A token as anybody can make one, without the checks of a library."""
    texts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    signed = b".".join(texts)
    signature = base64.urlsafe_b64encode(hmac.digest(key, signed, "sha256")).rstrip(b"=")
    return (signed + b"." + signature).decode()


def secret_rules(tmp_path: Path, key: bytes, **claims: str) -> TokenRules:
    return TokenRules.of_secret(write(tmp_path / "rules", key), "token_secret_key", **claims)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_of_each_algorithm_names_its_role(tmp_path: Path, algorithm: str) -> None:
    if algorithm in SECRET_BYTES:
        source = write(tmp_path / "secret", new_secret(algorithm))
        rules = TokenRules.of_secret(source, "token_secret_key")
        key = signing_key(source, algorithm, "--secret-key")
    else:
        private, public = new_key_pair(algorithm)
        key = signing_key(write(tmp_path / "private", private), algorithm, "--private-key")
        rules = TokenRules.of_public(write(tmp_path / "public", public), algorithm, "token_public_key")
    known = rules.check(create_token(key, algorithm, "shop", int(NOW) + 60), NOW)
    assert known.role == "shop"
    assert known.expires_s == int(NOW) + 60


def test_a_token_is_of_use_until_it_expires_and_from_its_beginning_on(tmp_path: Path) -> None:
    key = new_secret("HS256")
    rules = secret_rules(tmp_path, key)
    token = create_token(key, "HS256", "shop", int(NOW))
    assert rules.check(token, NOW - 1).role == "shop"
    with pytest.raises(AuthenticationError, match="has expired"):
        rules.check(token, NOW)
    later = jwt.encode({"sub": "shop", "nbf": int(NOW)}, key, "HS256")
    assert rules.check(later, NOW).role == "shop"
    with pytest.raises(AuthenticationError, match="not valid yet"):
        rules.check(later, NOW - 1)


@pytest.mark.parametrize("moment", ["tomorrow", True, [], {}])
def test_an_expiry_that_is_no_time_is_never_for_ever(tmp_path: Path, moment: Any) -> None:
    key = new_secret("HS256")
    token = _signed_by_hmac(key, {"alg": "HS256"}, {"sub": "shop", "exp": moment})
    with pytest.raises(AuthenticationError, match="no time"):
        secret_rules(tmp_path, key).check(token, NOW)


def test_a_token_of_another_key_is_refused(tmp_path: Path, pairs: dict[str, tuple[bytes, bytes]]) -> None:
    token = create_token(new_secret("HS256"), "HS256", "shop")
    with pytest.raises(AuthenticationError, match="another key"):
        secret_rules(tmp_path, new_secret("HS256")).check(token, NOW)
    other = signing_key(write(tmp_path / "other", new_key_pair("RS256")[0]), "RS256", "key")
    rules = TokenRules.of_public(write(tmp_path / "public", pairs["RS256"][1]), "RS256", "token_public_key")
    with pytest.raises(AuthenticationError, match="another key"):
        rules.check(create_token(other, "RS256", "shop"), NOW)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "", None, 5, "HS257"])
def test_a_token_that_nobody_signed_is_refused(tmp_path: Path, name: Any) -> None:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": name}, {"sub": "admin"})
    ]
    with pytest.raises(AuthenticationError, match="the key is for HS256"):
        secret_rules(tmp_path, new_secret("HS256")).check(".".join([*parts, ""]), NOW)


def _in_pem(public: bytes) -> bytes:
    lines = base64.encodebytes(public)
    return b"-----BEGIN PUBLIC KEY-----\n" + lines + b"-----END PUBLIC KEY-----\n"


def test_a_public_key_is_never_taken_for_a_secret(
    tmp_path: Path, pairs: dict[str, tuple[bytes, bytes]]
) -> None:
    public = pairs["RS256"][1]
    rules = TokenRules.of_public(write(tmp_path / "public", public), "RS256", "token_public_key")
    with pytest.raises(AuthenticationError, match="signed by 'HS256': the key is for RS256"):
        rules.check(_signed_by_hmac(public, {"alg": "HS256"}, {"sub": "admin"}), NOW)
    with pytest.raises(InvalidConfiguration, match="cannot sign with this key"):
        create_token(_in_pem(public), "HS256", "admin")
    elliptic = signing_key(write(tmp_path / "private", pairs["ES256"][0]), "ES256", "key")
    with pytest.raises(AuthenticationError, match="signed by 'ES256'"):
        rules.check(create_token(elliptic, "ES256", "admin"), NOW)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "e30.e30", "W10.W10.", "é.é.é", "x" * 100_000])
def test_garbage_is_no_token(tmp_path: Path, token: str) -> None:
    with pytest.raises(AuthenticationError):
        secret_rules(tmp_path, new_secret("HS256")).check(token, NOW)
    if token not in ("e30.e30.",):
        with pytest.raises(AuthenticationError):
            show_token(token)


@pytest.mark.parametrize("role", [None, "", 5, [], [5], {"a": "b"}])
def test_a_token_without_a_role_is_refused(tmp_path: Path, role: Any) -> None:
    key = new_secret("HS256")
    token = jwt.encode({} if role is None else {"who": role}, key, "HS256")
    with pytest.raises(AuthenticationError, match="no role in its claim who"):
        secret_rules(tmp_path, key, claim="who").check(token, NOW)


def test_the_audience_must_be_ours_where_one_is_set(tmp_path: Path) -> None:
    key = new_secret("HS256")
    rules = secret_rules(tmp_path, key, audience_claim="aud", audience="here")
    assert rules.check(jwt.encode({"sub": "a", "aud": ["x", "here"]}, key, "HS256"), NOW).role == "a"
    for claims in ({"sub": "a"}, {"sub": "a", "aud": "there"}, {"sub": "a", "aud": ["there"]}):
        with pytest.raises(AuthenticationError, match="for others"):
            rules.check(jwt.encode(claims, key, "HS256"), NOW)


def test_keys_are_where_the_setting_says(tmp_path: Path) -> None:
    key = new_secret("HS256")
    path = write(tmp_path / "a key", key)
    token = create_token(key, "HS256", "shop")
    encoded = base64.b64encode(key).decode()
    for source in (path, f"file://{path.replace(' ', '%20')}", f"data:;base64,{encoded}"):
        assert TokenRules.of_secret(source, "token_secret_key").check(token, NOW).role == "shop"


@pytest.mark.parametrize(
    "source",
    ["/nowhere/key", "file:///nowhere", "file://other/key", "data:", "data:;base64,?", "data:,x", "\0"],
)
def test_a_key_that_is_not_there_is_said_without_the_key(source: str) -> None:
    with pytest.raises(InvalidConfiguration, match="token_secret_key: ") as caught:
        TokenRules.of_secret(source, "token_secret_key")
    assert "?" not in str(caught.value)


def test_keys_of_another_kind_are_refused_when_they_are_read(
    tmp_path: Path, pairs: dict[str, tuple[bytes, bytes]]
) -> None:
    public = write(tmp_path / "public", pairs["RS256"][1])
    for algorithm, words in (
        ("ES256", "needs an elliptic"),
        ("HS256", "secret key"),
        ("none", "no algorithm"),
    ):
        with pytest.raises(InvalidConfiguration, match=words):
            TokenRules.of_public(public, algorithm, "token_public_key")
    with pytest.raises(InvalidConfiguration, match="no public key"):
        TokenRules.of_public(write(tmp_path / "bad", b"no key"), "RS256", "token_public_key")
    assert CURVES.keys() <= set(ALGORITHMS)


def test_what_is_missing_without_the_libraries_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rules = secret_rules(tmp_path, new_secret("HS256"))
    monkeypatch.setitem(sys.modules, "jwt", None)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    for call in (lambda: rules.check("a.b.c", NOW), lambda: new_key_pair("RS256")):
        with pytest.raises(OperationNotSupported, match=r"pip install 'pulsar-ray\[security\]'"):
            call()
