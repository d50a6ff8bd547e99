"""Holds the official authentication classes.

Tokens, certificates, passwords and OAuth 2 say which role a client acts as; Athenz can be built, and is
refused (`not_yet`).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from pulsar_ray.client.options.checks import check_optional_text, check_text, refuse


class Authentication:
    """A plugin by its name and parameters."""

    def __init__(self, dynamicLibPath: str, authParamsString: str) -> None:  # noqa: N803
        check_text("dynamicLibPath", dynamicLibPath)
        check_text("authParamsString", authParamsString)
        self.auth: tuple[object, ...] = (dynamicLibPath, authParamsString)


class AuthenticationTLS(Authentication):
    """A client certificate in PEM, and its private key; the common name is the role."""

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        check_text("certificate_path", certificate_path)
        check_text("private_key_path", private_key_path)
        self.auth = ("tls", certificate_path, private_key_path)


class AuthenticationToken(Authentication):
    """A token, or a function that gives one."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        if not isinstance(token, str) and not callable(token):
            raise refuse("token", token, "a str or a function returning one")
        self.auth = ("token", token)


class AuthenticationAthenz(Authentication):
    """Athenz, configured by a JSON text."""

    def __init__(self, auth_params_string: str) -> None:
        check_text("auth_params_string", auth_params_string)
        self.auth = ("athenz", auth_params_string)


class AuthenticationOauth2(Authentication):
    """OAuth 2, configured by a JSON text."""

    def __init__(self, auth_params_string: str) -> None:
        check_text("auth_params_string", auth_params_string)
        self.auth = ("oauth2", auth_params_string)


class AuthenticationBasic(Authentication):
    """User name and password; the JSON text wins if given.

    Raises RuntimeError if that is no JSON object.
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        check_optional_text("auth_params_string", auth_params_string)
        if auth_params_string is not None:
            try:
                parsed = json.loads(auth_params_string)
            except ValueError as error:
                raise RuntimeError(f"auth_params_string is no JSON: {error}") from error
            if not isinstance(parsed, dict):
                raise RuntimeError("auth_params_string must be a JSON object")
            self.auth = ("basic", auth_params_string)
            return
        check_text("username", username)
        check_text("password", password)
        check_text("method", method)
        self.auth = ("basic", username, password, method)
