"""Finds out who somebody is, by a token, a password or a certificate."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from functools import cached_property

from pulsar_ray.config import Settings
from pulsar_ray.errors import AuthenticationError, InvalidConfiguration
from pulsar_ray.security.certificates import SCHEME, ClientCertificates
from pulsar_ray.security.passwords import Passwords
from pulsar_ray.security.tokens import TokenRules, jwt


@dataclass(frozen=True)
class Caller:
    """The role of somebody, and its end in seconds since 1970, None for never."""

    role: str
    expires_s: float | None = None


NOBODY = Caller("")
"""Stands for all where nobody is asked."""


@dataclass(frozen=True)
class Credentials:
    """Holds a header, a token, a verified certificate's name, or proof of its key."""

    authorization: str = ""
    token: str = ""
    certificate_name: str = ""
    proof: str | None = None

    @classmethod
    def of_program(cls, shown: str) -> Credentials:
        """Return what a program on Ray shows: a header of HTTP, or proof."""
        scheme, _, rest = shown.partition(" ")
        return cls(proof=rest) if scheme == SCHEME else cls(shown)


class Authentication:
    """Decides who somebody is, as the settings say.

    Raises InvalidConfiguration for keys that are not there, and OperationNotSupported where the library for
    tokens is missing.
    """

    def __init__(self, settings: Settings) -> None:
        self.is_enabled = settings.authentication_enabled
        self._anonymous = settings.anonymous_user_role
        self._tokens: TokenRules | None = None
        self._passwords: Passwords | None = None
        self._trusted = settings.tls_trust_certs_file_path
        if not self.is_enabled:
            return
        if settings.token_secret_key or settings.token_public_key:
            jwt()
            self._tokens = _rules(settings)
        if settings.basic_auth_conf:
            self._passwords = Passwords(settings.basic_auth_conf, "basic_auth_conf")

    @cached_property
    def _certificates(self) -> ClientCertificates:
        return ClientCertificates(self._trusted, "tls_trust_certs_file_path")

    @property
    def challenge(self) -> str:
        """The header by which HTTP asks for it."""
        return "Bearer" if self._tokens is not None else 'Basic realm="pulsar-ray"'

    def who(self, shown: Credentials, now_s: float) -> Caller:
        """Return who shows these credentials.

        Raises AuthenticationError for wrong ones, and for none unless there is an anonymous role. Wrong ones
        are never taken for none.
        """
        if not self.is_enabled:
            return NOBODY
        if shown.proof is not None:
            return self._of_certificate(shown.proof, now_s)
        if shown.authorization:
            kind, _, value = shown.authorization.partition(" ")
            if kind.lower() == "bearer":
                return self._of_token(value.strip(), now_s)
            if kind.lower() == "basic":
                return self._of_password(value.strip())
            raise AuthenticationError("Authorization is neither Bearer nor Basic")
        if shown.token:
            return self._of_token(shown.token, now_s)
        if role := shown.certificate_name or self._anonymous:
            return Caller(role)
        raise AuthenticationError("Authentication required")

    def _of_certificate(self, proof: str, now_s: float) -> Caller:
        if not self._trusted:
            raise AuthenticationError("certificates are not taken here")
        return Caller(*self._certificates.check(proof, now_s))

    def _of_token(self, token: str, now_s: float) -> Caller:
        if self._tokens is None:
            raise AuthenticationError("tokens are not taken here")
        known = self._tokens.check(token, now_s)
        return Caller(known.role, known.expires_s)

    def _of_password(self, encoded: str) -> Caller:
        if self._passwords is None:
            raise AuthenticationError("passwords are not taken here")
        try:
            user, sign, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise AuthenticationError("Authorization is no base64 of user:password") from None
        if not sign:
            raise AuthenticationError("Authorization is no base64 of user:password")
        return Caller(self._passwords.check(user, password))


def basic_header(user: str, password: str) -> str:
    """Return what `Authorization` has for a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _rules(settings: Settings) -> TokenRules:
    claims = {
        "claim": settings.token_auth_claim,
        "audience_claim": settings.token_audience_claim,
        "audience": settings.token_audience,
    }
    if bool(settings.token_audience_claim) != bool(settings.token_audience):
        raise InvalidConfiguration("give both token_audience_claim and token_audience, or neither")
    if settings.token_secret_key:
        return TokenRules.of_secret(settings.token_secret_key, "token_secret_key", **claims)
    return TokenRules.of_public(
        settings.token_public_key, settings.token_public_alg, "token_public_key", **claims
    )
