"""Payloads are encrypted for one key, and decrypted by whoever has its private half."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pulsar_ray.client.encryption import payload_decrypter
from pulsar_ray.client.encryption.payload_cipher import RENEWAL_S, PayloadCipher
from pulsar_ray.client.encryption.payload_decrypter import PayloadDecrypter
from pulsar_ray.client.options.crypto_key_reader import CryptoKeyReader
from pulsar_ray.client.options.producer_options import ProducerOptions
from pulsar_ray.errors import CryptoError
from pulsar_ray.security.keys import new_key_pair
from tests.rsa_keys import key_reader


def cipher(name: str = "ours", **arguments: object) -> PayloadCipher:
    return PayloadCipher("app", key_reader(name).public_key_path, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", [b"", b"x", bytes(1_000_000), memoryview(b"viewed")])
def test_what_is_encrypted_is_decrypted_with_the_private_key(payload: bytes) -> None:
    info, encrypted = cipher()(payload)
    assert len(encrypted) == len(payload) + 16
    assert PayloadDecrypter(key_reader("ours"))(info, encrypted) == payload


def test_equal_payloads_become_different_ones() -> None:
    encrypt = cipher()
    assert len({encrypt(b"the same")[1] for _ in range(100)}) == 100


def test_a_data_key_is_renewed_and_older_messages_stay_readable() -> None:
    now_s = [0.0]
    encrypt = cipher(monotonic_s=lambda: now_s[0])
    first, again = encrypt(b"1"), encrypt(b"2")
    now_s[0] = RENEWAL_S
    later = encrypt(b"3")
    (key,), (same,), (new,) = (info.keys for info, _ in (first, again, later))
    assert key == same
    assert key[1] != new[1]
    decrypt = PayloadDecrypter(key_reader("ours"))
    assert [decrypt(*each) for each in (later, first, again)] == [b"3", b"1", b"2"]


def test_data_keys_in_memory_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_decrypter, "MOST_DATA_KEYS", 2)
    decrypt = PayloadDecrypter(key_reader("ours"))
    sent = [cipher()(b"%d" % number) for number in range(5)]
    for _ in range(2):
        assert [decrypt(*each) for each in sent] == [b"%d" % number for number in range(5)]
    assert len(decrypt._data_keys) == 2


@pytest.mark.parametrize("name", [None, "another"])
def test_without_the_key_nothing_is_decrypted(name: str | None) -> None:
    reader = None if name is None else key_reader(name)
    info, encrypted = cipher()(b"secret")
    with pytest.raises(CryptoError, match="'app'") as raised:
        PayloadDecrypter(reader)(info, encrypted)
    if reader is not None:
        assert reader.private_key_path not in str(raised.value), "a key is not for logs"
        assert reader.private_key_path not in repr(reader)


def test_a_changed_payload_is_found() -> None:
    info, encrypted = cipher()(b"secret")
    decrypt = PayloadDecrypter(key_reader("ours"))
    for place in range(len(encrypted)):
        changed = bytearray(encrypted)
        changed[place] ^= 1
        with pytest.raises(CryptoError, match="changed"):
            decrypt(info, bytes(changed))
    for nonce in (b"", bytes(12), bytes(40)):
        with pytest.raises(CryptoError):
            decrypt(info._replace(parameter=nonce), encrypted)


def test_an_algorithm_of_a_later_build_is_named() -> None:
    info, encrypted = cipher()(b"secret")
    with pytest.raises(CryptoError, match="'ROT13'"):
        PayloadDecrypter(key_reader("ours"))(info._replace(algorithm="ROT13"), encrypted)


def test_a_private_key_that_comes_later_is_found(tmp_path: Path) -> None:
    private, public = new_key_pair("RS256")
    (tmp_path / "public").write_bytes(public)
    decrypt = PayloadDecrypter(CryptoKeyReader("", str(tmp_path / "private")))
    info, encrypted = PayloadCipher("app", str(tmp_path / "public"))(b"secret")
    with pytest.raises(CryptoError, match="private' cannot be read"):
        decrypt(info, encrypted)
    (tmp_path / "private").write_bytes(private)
    assert decrypt(info, encrypted) == b"secret"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere/key", "'/nowhere/key' cannot be read"),
        ("data:,nonsense", "no public key"),
        ("DATA:,nonsense", "no public key"),
        ("a private one", "no public key"),
    ],
)
def test_a_public_key_that_cannot_be_used_is_refused_at_once(source: str, said: str) -> None:
    if source == "a private one":
        source = key_reader("ours").private_key_path
    with pytest.raises(CryptoError, match=said) as raised:
        PayloadCipher("app", source)
    assert "'app'" in str(raised.value)


def test_without_the_library_nothing_is_decrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as without the key: the consumer's `crypto_failure_action` says what becomes of a message."""
    info, encrypted = cipher()(b"secret")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(CryptoError, match="pip install"):
        PayloadDecrypter(key_reader("ours"))(info, encrypted)


SECRET = "-----BEGIN PRIVATE KEY-----\nMIIEvQ"


@pytest.mark.parametrize("given", [SECRET, SECRET.encode(), Path(SECRET)])
def test_a_key_in_the_wrong_place_is_not_shown(given: object) -> None:
    for paths in ((given, ""), ("", given)):
        with pytest.raises(ValueError, match=r"must be .*path, file:// or data: URL") as raised:
            CryptoKeyReader(*paths)
        assert "MII" not in str(raised.value)
    assert "MII" not in repr(CryptoKeyReader("", f"data:,{SECRET}"))
    with pytest.raises(ValueError, match="crypto_key_reader must be a CryptoKeyReader or None") as raised:
        ProducerOptions("t", crypto_key_reader=given).checked()  # type: ignore[arg-type]
    assert "MII" not in str(raised.value)
