"""Shows who a program on Ray is by its certificate, without a connection of TLS.

A certificate alone proves nothing, so the program signs a token with its key: the token has the certificates
as `x5c` (RFC 7515) and is good for a minute.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from typing import Any

from pulsar_ray.errors import AuthenticationError, InvalidConfiguration, OperationNotSupported
from pulsar_ray.security.keys import CURVES, MISSING, RSA_BITS, asymmetric_key, cryptography, read_source
from pulsar_ray.security.tokens import jwt, show_token

SCHEME = "x5c"
"""Stands before such a token, where HTTP has Bearer."""
AUDIENCE = "pulsar_ray"
GOOD_FOR_S = 60
CLOCKS_APART_S = 60
"""How far the clocks of two nodes may differ."""
_MOST_CERTIFICATES = 8
_OF_CURVES = {curve: algorithm for algorithm, curve in CURVES.items()}


def proof(certificate: str, private_key: str, now_s: float) -> str:
    """Return a token that proves that its sender has the key of a certificate.

    The file may have the certificates of its signers behind it. Raises AuthenticationError, with what is
    wrong with the files, and OperationNotSupported where the libraries are missing.
    """
    library, x509 = jwt(), _x509()
    try:
        chain = _certificates(x509, read_source(certificate, "certificate_path"), "certificate_path")
        algorithm = _algorithm_of(chain[0])
        key = asymmetric_key(private_key, algorithm, "private_key_path", is_private=True)
    except InvalidConfiguration as error:
        raise AuthenticationError(error.text) from None
    if key.public_key() != chain[0].public_key():
        raise AuthenticationError("private_key_path is not the key of certificate_path")
    der = cryptography().serialization.Encoding.DER
    shown = [base64.b64encode(each.public_bytes(der)).decode() for each in chain]
    claims = {"aud": AUDIENCE, "exp": int(now_s) + GOOD_FOR_S}
    token: str = library.encode(claims, key, algorithm, headers={"x5c": shown})
    return token


class ClientCertificates:
    """Checks such tokens against the certificates of those who may sign.

    Raises InvalidConfiguration for a file that has none.
    """

    def __init__(self, trusted: str, what: str) -> None:
        x509 = _x509()
        self._trusted = _certificates(x509, read_source(trusted, what), what)

    def check(self, token: str, now_s: float) -> tuple[str, float]:
        """Return the common name of the signer, and when the certificate ends.

        In seconds since 1970.

        Raises AuthenticationError for a certificate that nobody trusted has signed, that is not valid now or
        not for clients, and for a token that its key did not sign, or that is older than a minute.
        """
        header, _ = show_token(token)
        try:
            return self._checked(token, header, now_s)
        except (AuthenticationError, OperationNotSupported):
            raise
        except Exception as error:  # of the library, for a field that cannot be read: many kinds
            raise AuthenticationError(f"what it shows is no certificate: {str(error)[:200]}") from error

    def _checked(self, token: str, header: Mapping[str, Any], now_s: float) -> tuple[str, float]:
        library, x509 = jwt(), _x509()
        chain = _shown(x509, header.get("x5c"))
        leaf = chain[0]
        self._verify(x509, chain, now_s)
        algorithm = _algorithm_of(leaf)
        if header.get("alg") != algorithm:
            raise AuthenticationError(f"it is signed by {header.get('alg')!r:.20}, not by {algorithm}")
        off = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat"), False)
        try:
            claims = library.decode(
                token, leaf.public_key(), algorithms=[algorithm], audience=AUDIENCE, options=off
            )
        except library.PyJWTError as error:
            raise AuthenticationError(f"the key of the certificate did not sign this: {error}") from None
        ends_s = claims.get("exp")
        if type(ends_s) is not int or not now_s - CLOCKS_APART_S < ends_s <= now_s + 2 * CLOCKS_APART_S:
            raise AuthenticationError("it was signed too long ago, or the clocks of the two nodes are apart")
        names = leaf.subject.get_attributes_for_oid(x509.oid.NameOID.COMMON_NAME)
        if not names or not names[0].value:
            raise AuthenticationError("the certificate has no common name")
        return str(names[0].value), leaf.not_valid_after_utc.timestamp()

    def _verify(self, x509: Any, chain: list[Any], now_s: float) -> None:
        verification = x509.verification

        def for_clients(_policy: object, _certificate: object, usage: Any) -> None:
            if usage is not None and x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
                raise ValueError("it is not for clients")

        def for_tokens(_policy: object, _certificate: object, usage: Any) -> None:
            if usage is not None and not (usage.digital_signature or usage.key_agreement):
                raise ValueError("its key is not for signatures")

        def for_certificates(_policy: object, _certificate: object, usage: Any) -> None:
            if usage is not None and not usage.key_cert_sign:
                raise ValueError("its key is not for signatures of certificates")

        # Only the extensions that OpenSSL looks at for HTTP: many a private authority leaves out others.
        agnostic = verification.Criticality.AGNOSTIC
        anything = verification.ExtensionPolicy.permit_all()
        clients = anything.may_be_present(x509.ExtendedKeyUsage, agnostic, for_clients)
        signers = clients.require_present(x509.BasicConstraints, agnostic, None)
        verifier = (
            verification.PolicyBuilder()
            .store(verification.Store(self._trusted))
            .time(datetime.datetime.fromtimestamp(now_s, datetime.timezone.utc))
            .extension_policies(
                ca_policy=signers.may_be_present(x509.KeyUsage, agnostic, for_certificates),
                ee_policy=clients.may_be_present(x509.KeyUsage, agnostic, for_tokens),
            )
            .build_client_verifier()
        )
        try:
            verified = verifier.verify(chain[0], chain[1:])
        except verification.VerificationError as error:
            raise AuthenticationError(f"the certificate is not accepted: {str(error)[:300]}") from None
        for each in verified.chain:
            key = each.public_key()
            if isinstance(key, cryptography().rsa.RSAPublicKey) and key.key_size < RSA_BITS:
                raise AuthenticationError(
                    f"the certificate is not accepted: an RSA key of {key.key_size} bits can be broken"
                )


def _x509() -> Any:
    try:
        from cryptography import x509  # noqa: PLC0415 - an extra
    except ImportError:
        raise OperationNotSupported(MISSING) from None
    return x509


def _certificates(x509: Any, content: bytes, what: str) -> list[Any]:
    try:
        found: list[Any] = x509.load_pem_x509_certificates(content)
    except Exception as error:  # of the library: many kinds
        raise InvalidConfiguration(f"{what}: it has no certificate in PEM") from error
    return found


def _shown(x509: Any, chain: Any) -> list[Any]:
    if not isinstance(chain, list) or not 0 < len(chain) <= _MOST_CERTIFICATES:
        raise AuthenticationError("it shows no certificate, or too many")
    try:
        return [x509.load_der_x509_certificate(base64.b64decode(each, validate=True)) for each in chain]
    except (ValueError, TypeError):
        raise AuthenticationError("what it shows is no certificate") from None


def _algorithm_of(certificate: Any) -> str:
    """Return the algorithm that the key of a certificate signs by."""
    keys, key = cryptography(), certificate.public_key()
    if isinstance(key, keys.rsa.RSAPublicKey):
        return "RS256"
    if isinstance(key, keys.ec.EllipticCurvePublicKey) and key.curve.name in _OF_CURVES:
        return _OF_CURVES[key.curve.name]
    raise AuthenticationError("the key of the certificate is neither of RSA nor of a curve of NIST")
