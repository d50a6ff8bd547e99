"""Users and passwords in a file that `htpasswd -m` writes."""

from __future__ import annotations

import hashlib
import hmac
import os

from pulsar_ray.errors import AuthenticationError, InvalidConfiguration
from pulsar_ray.security.keys import is_data_url, path_of, read_source

_MAGIC = "$apr1$"
_SIGNS = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ROUNDS = 1000
_NOBODY = "$apr1$nobody$......................"
_LONGEST = 1024


class Passwords:
    """The users of a file, which is read again when it has changed.

    Raises InvalidConfiguration for a file that cannot be read or has other hashes.
    """

    def __init__(self, source: str, what: str) -> None:
        self._source = source
        self._what = what
        self._path = "" if is_data_url(source) else path_of(source, what)
        self._seen = self._state()
        self._hashes = self._read()

    def check(self, user: str, password: str) -> str:
        """Return the role of a user: the name. Raises AuthenticationError for another password."""
        self._refresh()
        known = self._hashes.get(user)
        given = apr1(password, (known or _NOBODY).split("$")[2])
        if known is None or not hmac.compare_digest(given.encode(), known.encode()):
            raise AuthenticationError("unknown user, or another password")
        return user

    def _refresh(self) -> None:
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._hashes = self._read()
        except InvalidConfiguration:
            # Half written, or gone: nobody comes in until it can be read.
            self._hashes = {}

    def _state(self) -> tuple[int, int, int]:
        if not self._path:
            return (0, 0, 0)
        try:
            found = os.stat(self._path)
        except (OSError, ValueError):
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_ino, found.st_size)

    def _read(self) -> dict[str, str]:
        hashes = {}
        for number, line in enumerate(_lines(read_source(self._source, self._what), self._what), 1):
            if not line.strip() or line.startswith("#"):
                continue
            user, sign, hashed = line.strip().partition(":")
            if not (user and sign) or not hashed.startswith(_MAGIC) or hashed.count("$") != 3:
                raise InvalidConfiguration(
                    f"{self._what}: line {number} is no user with a hash of `htpasswd -m`, user:$apr1$..."
                )
            hashes[user] = hashed
        return hashes


def _lines(content: bytes, what: str) -> list[str]:
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError:
        raise InvalidConfiguration(f"{what}: it is no file of users: make it with `htpasswd -m`") from None


def apr1(password: str, salt: str) -> str:
    """Return Apache's hash of a password: MD5 of MD5, a thousand times."""
    secret, salted = password.encode()[:_LONGEST], salt.encode()[:8]
    inner = hashlib.md5(secret + salted + secret, usedforsecurity=False).digest()
    text = secret + _MAGIC.encode() + salted
    text += (inner * (len(secret) // 16 + 1))[: len(secret)]
    count = len(secret)
    while count:
        text += b"\0" if count & 1 else secret[:1]
        count >>= 1
    digest = hashlib.md5(text, usedforsecurity=False).digest()
    for turn in range(_ROUNDS):
        step = secret if turn & 1 else digest
        step += salted if turn % 3 else b""
        step += secret if turn % 7 else b""
        step += digest if turn & 1 else secret
        digest = hashlib.md5(step, usedforsecurity=False).digest()
    signs = []
    for first, second, third in ((0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)):
        number = digest[first] << 16 | digest[second] << 8 | digest[third]
        signs += [_SIGNS[number >> shift & 0x3F] for shift in (0, 6, 12, 18)]
    signs += [_SIGNS[digest[11] & 0x3F], _SIGNS[digest[11] >> 6]]
    return f"{_MAGIC}{salt[:8]}${''.join(signs)}"
