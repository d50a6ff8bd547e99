"""Gets tokens of OAuth 2 by a client's credentials, as Pulsar's clients do."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from pulsar_ray.errors import AuthenticationError, InvalidConfiguration
from pulsar_ray.launch.listeners import is_loopback
from pulsar_ray.security.keys import read_source

TIMEOUT_S = 10.0
_MOST_BYTES = 1 << 20
_USED_SHARE = 0.9
"""A token is asked for anew when so much of its life is over."""


class ClientCredentials:
    """Keeps the token that an issuer gave, and asks for another before it ends.

    `parameters` is the JSON of `AuthenticationOauth2`: `issuer_url`, `private_key` (a file with `client_id`
    and `client_secret`, or both beside it), and perhaps `audience` and `scope`. Thread-safe.
    """

    def __init__(self, parameters: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._text = parameters
        self._now_s = now_s
        self._lock = threading.Lock()
        self._token = ""
        self._until_s = 0.0

    def token(self) -> str:
        """Return a token that is valid. Raises AuthenticationError."""
        with self._lock:
            if not self._token or self._now_s() >= self._until_s:
                asked_s = self._now_s()
                self._token, lasts_s = self._ask()
                self._until_s = asked_s + _USED_SHARE * lasts_s
            return self._token

    def _ask(self) -> tuple[str, float]:
        given = _object(self._text, "the parameters of AuthenticationOauth2")
        issuer = _text_in(given, "issuer_url", "the parameters of AuthenticationOauth2").rstrip("/")
        credentials = {**given, **_of_file(given.get("private_key"))}
        form = {
            "grant_type": "client_credentials",
            "client_id": _text_in(credentials, "client_id", "the credentials"),
            "client_secret": _text_in(credentials, "client_secret", "the credentials"),
            **{name: str(given[name]) for name in ("audience", "scope") if given.get(name)},
        }
        place = f"{issuer}/.well-known/openid-configuration"
        address = _text_in(_fetched(place), "token_endpoint", place)
        answer = _fetched(address, form)
        lasts_s = answer.get("expires_in", 0)
        is_number = isinstance(lasts_s, (int, float)) and not isinstance(lasts_s, bool)
        return _text_in(answer, "access_token", address), float(lasts_s) if is_number else 0.0


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows an issuer to where credentials may be sent, and nowhere else."""

    def redirect_request(self, *given: Any) -> urllib.request.Request | None:
        """See HTTPRedirectHandler: the last argument is the new address."""
        _check_address(given[-1])
        return super().redirect_request(*given)


_OPENER = urllib.request.build_opener(_SafeRedirects)


def _check_address(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise AuthenticationError(f"{url[:200]}: credentials are sent by https alone")


def _fetched(url: str, form: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return the JSON of an address, behind a form if one is given."""
    try:
        _check_address(url)
        request = urllib.request.Request(url, None if form is None else urlencode(form).encode())
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            body = answer.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        said = error.read(500).decode(errors="replace")
        raise AuthenticationError(f"{url[:200]} answers {error.code}: {said}") from None
    except OSError as error:
        raise AuthenticationError(f"{url[:200]} does not answer: {error}") from None
    except (ValueError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise AuthenticationError(f"{url[:200]} is no address, or no HTTP answers: {reason[:200]}") from None
    return _object(body, url)


def _of_file(place: Any) -> Mapping[str, Any]:
    """Return the credentials of a file that is named as keys are."""
    if not place:
        return {}
    try:
        return _object(read_source(str(place), "private_key"), "private_key")
    except InvalidConfiguration as error:
        raise AuthenticationError(error.text) from None


def _object(text: str | bytes, place: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AuthenticationError(f"{place[:200]} is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise AuthenticationError(f"{place[:200]} is no JSON object")
    return parsed


def _text_in(found: Mapping[str, Any], name: str, place: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise AuthenticationError(f"{place[:200]} has no {name}")
    return value
