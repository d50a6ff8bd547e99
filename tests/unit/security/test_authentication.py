"""Passwords of htpasswd, what is shown and in which order, and the settings that say so."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthenticationError, InvalidConfiguration
from pulsar_ray.security.authentication import Authentication, Credentials
from pulsar_ray.security.keys import new_secret
from pulsar_ray.security.passwords import Passwords, apr1
from pulsar_ray.security.tokens import create_token

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("password", "salt", "hashed"),
    [
        ("secret", "abcdefgh", "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"),
        ("ein langes passwort, über 16", "xy", "$apr1$xy$pQYIF7zoMMIeirn0xjwho."),
    ],
)
def test_hashes_are_apaches(password: str, salt: str, hashed: str) -> None:
    assert apr1(password, salt) == hashed


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("password", ["a", "x" * 16, "y" * 63, "äöü€"])
def test_hashes_are_those_of_openssl(password: str) -> None:
    command = ["openssl", "passwd", "-apr1", "-salt", "saltsalt", "-stdin"]
    done = subprocess.run(command, input=password.encode(), capture_output=True, check=True)
    assert apr1(password, "saltsalt") == done.stdout.decode().strip()


def test_a_user_comes_in_by_the_password_alone(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"# people\nann:{apr1('pencil', 'abcdefgh')}\n\nbob:{apr1('', 'x')}\n")
    users = Passwords(str(file), "basic_auth_conf")
    assert users.check("ann", "pencil") == "ann"
    for user, password in (("ann", "Pencil"), ("ann", ""), ("bob", "pencil"), ("eve", "pencil"), ("", "")):
        with pytest.raises(AuthenticationError, match="unknown user, or another password"):
            users.check(user, password)


def test_a_user_who_was_removed_is_out_at_once(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_text(f"ann:{apr1('pencil', 'abcdefgh')}\n")
    users = Passwords(str(file), "basic_auth_conf")
    replacement = tmp_path / "new"
    replacement.write_text(f"bob:{apr1('pen', 'abcdefgh')}\n")
    os.replace(replacement, file)
    assert users.check("bob", "pen") == "bob"
    with pytest.raises(AuthenticationError):
        users.check("ann", "pencil")
    file.unlink()
    with pytest.raises(AuthenticationError):
        users.check("bob", "pen")


@pytest.mark.parametrize(
    "line", ["ann", "ann:pencil", "ann:$2y$05$x", ":$apr1$a$b", "ann:{SHA}x", "ann:$apr1$a"]
)
def test_other_hashes_are_refused_without_being_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "users"
    file.write_text(line)
    with pytest.raises(
        InvalidConfiguration, match="line 1 is no user with a hash of `htpasswd -m`"
    ) as caught:
        Passwords(str(file), "basic_auth_conf")
    assert "pencil" not in str(caught.value)


def basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


def test_what_is_wrong_is_never_taken_for_nothing(tmp_path: Path) -> None:
    key = new_secret("HS256")
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "users").write_text(f"ann:{apr1('pencil', 'abcdefgh')}\n")
    asked = Authentication(
        Settings(
            authentication_enabled=True,
            token_secret_key=str(tmp_path / "key"),
            basic_auth_conf=str(tmp_path / "users"),
            anonymous_user_role="guest",
        )
    )
    token = create_token(key, "HS256", "shop", int(NOW) + 5)
    assert asked.who(Credentials(), NOW).role == "guest"
    assert asked.who(Credentials(f"bearer  {token}"), NOW).expires_s == int(NOW) + 5
    assert asked.who(Credentials(token=token), NOW).role == "shop"
    assert asked.who(Credentials(basic("ann:pencil")), NOW).role == "ann"
    for header in (
        f"Bearer {token}x",
        "Bearer",
        "Bearer ",
        token,
        "Digest x",
        basic("ann:pen"),
        basic("ann"),
        "Basic !",
        "Basic /w==",
    ):
        with pytest.raises(AuthenticationError):
            asked.who(Credentials(header, token, "cn"), NOW)
    with pytest.raises(AuthenticationError, match="expired"):
        asked.who(Credentials(token=token), NOW + 5)


def test_without_it_nobody_is_asked() -> None:
    caller = Authentication(Settings()).who(Credentials("Bearer x"), NOW)
    assert caller.role == ""


def test_settings_that_would_let_nobody_in_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="nobody could come in"):
        Settings(authentication_enabled=True)
    with pytest.raises(InvalidConfiguration, match=r"token_secret_key: '/nowhere' cannot be read"):
        Authentication(Settings(authentication_enabled=True, token_secret_key="/nowhere"))
    key = base64.b64encode(new_secret("HS256")).decode()
    with pytest.raises(InvalidConfiguration, match="both"):
        Authentication(
            Settings(
                authentication_enabled=True,
                token_secret_key=f"data:;base64,{key}",
                token_audience_claim="aud",
            )
        )


def test_a_key_in_a_setting_is_shown_nowhere() -> None:
    key = base64.b64encode(new_secret("HS256")).decode()
    settings = Settings(token_secret_key=f"data:;base64,{key}", basic_auth_conf="users")
    assert key not in repr(settings)
    assert settings.described()["token_secret_key"] == "data: (not shown)"
    assert settings.described()["basic_auth_conf"] == str(Path.cwd() / "users")
