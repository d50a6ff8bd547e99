"""A program shows by its key that a certificate is its own."""

from __future__ import annotations

import base64
import json
import time
import warnings
from pathlib import Path
from random import Random

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from pulsar_ray.errors import AuthenticationError, InvalidConfiguration
from pulsar_ray.security.certificates import ClientCertificates, proof
from tests.certificates import Signer, key_usage

NOW = time.time()


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


@pytest.fixture
def checks(signer: Signer) -> ClientCertificates:
    return ClientCertificates(str(signer.file), "tls_trust_certs_file_path")


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(public_exponent=65537, key_size=2048),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
    ],
)
def test_the_common_name_is_the_role(signer: Signer, checks: ClientCertificates, key: object) -> None:
    role, ends_s = checks.check(proof(*signer.give("lead", "a", key=key), NOW), NOW)
    assert role == "lead"
    assert NOW < ends_s < NOW + 2 * 86_400


@pytest.mark.parametrize("use", [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
def test_a_certificate_may_say_that_it_is_for_servers_alone(
    signer: Signer, checks: ClientCertificates, use: object
) -> None:
    shown = proof(*signer.give("lead", "a", use=use), NOW)  # type: ignore[arg-type]
    if use is ExtendedKeyUsageOID.CLIENT_AUTH:
        assert checks.check(shown, NOW)[0] == "lead"
    else:
        with pytest.raises(AuthenticationError, match="not for clients"):
            checks.check(shown, NOW)


def test_signers_between_may_come_along_if_they_may_sign(signer: Signer, checks: ClientCertificates) -> None:
    assert checks.check(proof(*signer.give_by_another("lead", "a", is_ca=True), NOW), NOW)[0] == "lead"
    with pytest.raises(AuthenticationError, match="not accepted"):
        checks.check(proof(*signer.give_by_another("boss", "b", is_ca=False), NOW), NOW)


@pytest.mark.parametrize(
    ("of_signer", "of_client", "reason"),
    [
        ([key_usage(key_cert_sign=True)], [key_usage(digital_signature=True)], ""),
        ([key_usage(crl_sign=True)], [], "not for signatures of certificates"),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])], [], "not for clients"),
        ([x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])], [], ""),
        ([], [key_usage(key_encipherment=True)], "not for signatures"),
    ],
)
def test_keys_sign_only_what_they_are_for(
    signer: Signer,
    checks: ClientCertificates,
    of_signer: list[x509.ExtensionType],
    of_client: list[x509.ExtensionType],
    reason: str,
) -> None:
    files = signer.give_by_another("lead", "a", is_ca=True, of_signer=of_signer, of_client=of_client)
    if not reason:
        assert checks.check(proof(*files, NOW), NOW)[0] == "lead"
        return
    with pytest.raises(AuthenticationError, match=reason):
        checks.check(proof(*files, NOW), NOW)


def test_a_key_that_can_be_broken_proves_nothing(signer: Signer, checks: ClientCertificates) -> None:
    certificate, key = signer.give("lead", "a", key=rsa.generate_private_key(65537, 1024))
    shown = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).public_bytes(Encoding.DER)
    headers = {"x5c": [base64.b64encode(shown).decode()]}
    claims = {"aud": "pulsar_ray", "exp": int(NOW) + 60}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forged = jwt.encode(claims, Path(key).read_bytes(), "RS256", headers=headers)
        with pytest.raises(AuthenticationError, match="RSA key of 1024 bits"):
            checks.check(forged, NOW)


def test_a_certificate_with_any_byte_changed_is_refused(signer: Signer, checks: ClientCertificates) -> None:
    certificate, key = (Path(file).read_bytes() for file in signer.give("lead", "a"))
    good = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    claims = {"aud": "pulsar_ray", "exp": int(NOW) + 60}
    random = Random(40)
    for place in range(len(good)):
        changed = bytearray(good)
        changed[place] ^= random.randrange(1, 256)
        headers = {"x5c": [base64.b64encode(changed).decode()]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(AuthenticationError):
                checks.check(jwt.encode(claims, key, "ES256", headers=headers), NOW)


def test_what_is_not_signed_by_those_who_may_is_refused(
    tmp_path: Path, signer: Signer, checks: ClientCertificates
) -> None:
    stranger = Signer(tmp_path, "other")
    for files in (stranger.give("boss", "x"), Signer(tmp_path, "ca").give("boss", "y")):
        with pytest.raises(AuthenticationError, match="not accepted"):
            checks.check(proof(*files, NOW), NOW)
    with pytest.raises(AuthenticationError, match="not accepted"):
        checks.check(proof(*signer.give("late", "l", days=-1), NOW), NOW)
    with pytest.raises(AuthenticationError, match="no common name"):
        checks.check(proof(*signer.give("", "n"), NOW), NOW)


def test_it_is_good_for_a_minute_and_clocks_may_differ_by_one(
    signer: Signer, checks: ClientCertificates
) -> None:
    shown = proof(*signer.give("lead", "a"), NOW)
    for apart in (-59, 0, 119):
        assert checks.check(shown, NOW + apart)[0] == "lead"
    for apart in (-3600, 121, 3600):
        with pytest.raises(AuthenticationError, match="too long ago"):
            checks.check(shown, NOW + apart)


def test_a_certificate_without_its_key_proves_nothing(signer: Signer, checks: ClientCertificates) -> None:
    mine, other = signer.give("lead", "a"), signer.give("boss", "b")
    shown = proof(*mine, NOW)
    header = jwt.get_unverified_header(jwt_of_boss := proof(*other, NOW))
    key = Path(mine[1]).read_bytes()
    claims = {"aud": "pulsar_ray", "exp": int(NOW) + 60}
    forged = [
        jwt.encode(claims, key, "ES256", headers={"x5c": header["x5c"]}),
        jwt.encode(claims, "", "none", headers={"x5c": header["x5c"]}),
        jwt.encode(claims, "s" * 32, "HS256", headers={"x5c": header["x5c"]}),
        jwt.encode({**claims, "aud": "others"}, key, "ES256", headers=jwt.get_unverified_header(shown)),
        ".".join([*jwt_of_boss.split(".")[:2], shown.split(".")[2]]),
        jwt.encode({"aud": "pulsar_ray"}, key, "ES256", headers=jwt.get_unverified_header(shown)),
    ]
    for token in forged:
        with pytest.raises(AuthenticationError):
            checks.check(token, NOW)


@pytest.mark.parametrize("chain", [None, [], "text", [7], ["!"], ["aGk="], ["aGk="] * 9, [None], {"a": 1}])
def test_garbage_is_refused(checks: ClientCertificates, chain: object) -> None:
    parts = (json.dumps(part).encode() for part in ({"alg": "ES256", "x5c": chain}, {}))
    token = ".".join([base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts] + ["c2ln"])
    for shown in (token, "", "a.b", "a.b.c", "\u2713"):
        with pytest.raises(AuthenticationError):
            checks.check(shown, NOW)


def test_files_that_cannot_be_used_are_named(tmp_path: Path, signer: Signer) -> None:
    certificate, key = signer.give("lead", "a")
    other_key = signer.give("other", "b")[1]
    odd = signer.give("odd", "c", key=ed25519.Ed25519PrivateKey.generate())
    for files, named in (
        ((str(tmp_path / "none"), key), "certificate_path"),
        ((key, key), "certificate_path: it has no certificate"),
        ((certificate, str(tmp_path / "none")), "private_key_path"),
        ((certificate, certificate), "private_key_path: it is no private key"),
        ((certificate, other_key), "private_key_path is not the key"),
        (odd, "neither of RSA nor"),
    ):
        with pytest.raises(AuthenticationError, match=named):
            proof(*files, NOW)
    with pytest.raises(InvalidConfiguration, match="trusted: it has no certificate"):
        ClientCertificates(key, "trusted")
