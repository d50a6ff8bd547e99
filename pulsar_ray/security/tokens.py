"""Tokens, which are JWTs: signed ones, and what they say."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pulsar_ray.errors import AuthenticationError, InvalidConfiguration, OperationNotSupported
from pulsar_ray.security.keys import (
    MISSING,
    SECRET_BYTES,
    asymmetric_key,
    check_algorithm,
    secret_key,
)

SUBJECT = "sub"
_LONGEST = 16 << 10


def jwt() -> ModuleType:
    """Return PyJWT. Raises OperationNotSupported where it is missing."""
    try:
        import jwt as library  # noqa: PLC0415 - an extra
    except ImportError:
        raise OperationNotSupported(MISSING) from None
    return library


def signing_key(source: str, algorithm: str, what: str) -> Any:
    """Return the secret or private key that signs by an algorithm. Raises InvalidConfiguration."""
    check_algorithm(algorithm)
    if algorithm in SECRET_BYTES:
        key = secret_key(source, what)
        if len(key) < SECRET_BYTES[algorithm]:
            raise InvalidConfiguration(
                f"{what}: {algorithm} needs a secret of {SECRET_BYTES[algorithm]} bytes, not {len(key)}"
            )
        return key
    return asymmetric_key(source, algorithm, what, is_private=True)


def create_token(
    key: Any,
    algorithm: str,
    subject: str,
    expires_s: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> str:
    """Return a signed token of a role; without `expires_s`, in seconds since 1970, for ever."""
    claims: dict[str, Any] = {SUBJECT: subject}
    if expires_s is not None:
        claims["exp"] = expires_s
    library = jwt()
    # As Pulsar's tool leaves it out; a header that is given comes before ours.
    named = {"typ": None, **(headers or {})}
    try:
        token: str = library.encode(claims, key, algorithm, headers=named)
    except library.InvalidKeyError as error:
        raise InvalidConfiguration(f"{algorithm} cannot sign with this key: {error}") from None
    return token


def show_token(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of a token, whoever signed it. Raises AuthenticationError."""
    parts = token.strip().split(".")
    try:
        if len(parts) != 3 or len(token) > _LONGEST:
            raise ValueError
        header, claims = (json.loads(_bytes(part)) for part in parts[:2])
        if not (isinstance(header, dict) and isinstance(claims, dict)):
            raise ValueError
    except (ValueError, RecursionError):
        raise AuthenticationError("it is no token: three parts of base64 with dots between them") from None
    return header, claims


def _bytes(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@dataclass(frozen=True)
class KnownToken:
    """A token that is valid: the role of its bearer, and its claims."""

    role: str
    claims: Mapping[str, Any]

    @property
    def expires_s(self) -> float | None:
        """When it ends, in seconds since 1970; None for never."""
        expires = self.claims.get("exp")
        return None if expires is None else float(expires)


@dataclass(frozen=True)
class TokenRules:
    """How tokens must be signed, and which claims they need.

    `algorithms` are those of the key's own kind: a token's header does not choose.
    """

    key: Any
    algorithms: tuple[str, ...]
    claim: str = SUBJECT
    audience_claim: str = ""
    audience: str = ""

    @classmethod
    def of_secret(cls, source: str, what: str, **claims: str) -> TokenRules:
        """Accept tokens that are signed with a secret key. Raises InvalidConfiguration."""
        key = secret_key(source, what)
        return cls(key, tuple(name for name, size in SECRET_BYTES.items() if len(key) >= size), **claims)

    @classmethod
    def of_public(cls, source: str, algorithm: str, what: str, **claims: str) -> TokenRules:
        """Accept tokens of one algorithm, signed with the private key of this public one."""
        key = asymmetric_key(source, algorithm, what, is_private=False)
        return cls(key, (algorithm,), **claims)

    def check(self, token: str, now_s: float) -> KnownToken:
        """Return whose token it is.

        Raises AuthenticationError for one of another key or algorithm, that has expired, is not valid yet, or
        says nobody's name.
        """
        library = jwt()
        header, _ = show_token(token)
        name = header.get("alg")
        if name not in self.algorithms:
            raise AuthenticationError(
                f"the token is signed by {str(name)[:20]!r}: the key is for {' or '.join(self.algorithms)}"
            )
        try:
            # Time and audience below: with a clock that is passed in, and Pulsar's claims.
            off = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_sub"), False)
            claims = library.decode(token.strip(), self.key, algorithms=list(self.algorithms), options=off)
        except library.InvalidSignatureError:
            raise AuthenticationError("the token is signed with another key") from None
        except library.PyJWTError as error:
            raise AuthenticationError(f"the token cannot be read: {error}") from None
        self._check_time(claims, now_s)
        self._check_audience(claims)
        role = claims.get(self.claim)
        if isinstance(role, list):
            role = role[0] if role else None
        if not isinstance(role, str) or not role:
            raise AuthenticationError(f"the token has no role in its claim {self.claim}")
        return KnownToken(role, claims)

    @staticmethod
    def _check_time(claims: Mapping[str, Any], now_s: float) -> None:
        for name, words in (("exp", "has expired"), ("nbf", "is not valid yet")):
            moment = claims.get(name)
            if moment is None:
                continue
            if type(moment) not in (int, float):
                raise AuthenticationError(f"the token's {name} is no time")
            if (now_s >= moment) if name == "exp" else (now_s < moment):
                raise AuthenticationError(f"the token {words}")

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        if not self.audience_claim:
            return
        said = claims.get(self.audience_claim)
        if self.audience not in (said if isinstance(said, list) else [said]):
            raise AuthenticationError(f"the token is for others: its {self.audience_claim} is not ours")
