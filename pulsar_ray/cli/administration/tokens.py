"""`pulsar-ray tokens`: keys, and tokens signed with them, by the options of Pulsar's tool."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from pulsar_ray.cli.console import say, write_line, write_out
from pulsar_ray.cli.groups import BrokerCommands
from pulsar_ray.cli.parameters import duration
from pulsar_ray.security.keys import ALGORITHMS, SECRET_BYTES, new_key_pair, new_secret
from pulsar_ray.security.tokens import TokenRules, create_token, show_token, signing_key

_secret = click.option("-sk", "--secret-key", metavar="KEY", help="A path, file:// or data: of a secret.")


def _algorithm(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "-a",
        "--signature-algorithm",
        "algorithm",
        type=click.Choice(ALGORITHMS, case_sensitive=False),
        default=default,
        show_default=True,
        help="How tokens are signed.",
    )


def _token(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take a token from an argument, standard input, a file, or the environment."""
    function = click.option(
        "-f", "--token-file", type=click.Path(dir_okay=False), help="Read it from there."
    )(function)
    function = click.option("-i", "--stdin", is_flag=True, help="Read it from standard input.")(function)
    return click.argument("token", required=False)(function)


@click.group(cls=BrokerCommands)
def tokens() -> None:
    """Make keys and tokens for HTTP, and look at tokens."""


@tokens.command("create-secret-key")
@_algorithm("HS256")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the key to this new file.")
@click.option("-b", "--base64", "as_text", is_flag=True, help="Write base64 instead of bytes.")
def create_secret_key(algorithm: str, output: str | None, as_text: bool) -> None:
    """Make a secret that signs and checks tokens, for HS256 and its like.

    \b
    Example:
      pulsar-ray tokens create-secret-key --output secret.key
    """
    key = new_secret(algorithm)
    content = base64.b64encode(key) if as_text else key
    if output is not None:
        _write_new(output, content, 0o600)
    else:
        write_out(content + b"\n" if as_text else content)


@tokens.command("create-key-pair")
@_algorithm("RS256")
@click.option("--output-private-key", required=True, type=click.Path(dir_okay=False), help="Signs tokens.")
@click.option("--output-public-key", required=True, type=click.Path(dir_okay=False), help="Checks tokens.")
def create_key_pair(algorithm: str, output_private_key: str, output_public_key: str) -> None:
    """Make a private key that signs tokens, and a public one that checks them.

    \b
    Example:
      pulsar-ray tokens create-key-pair --output-private-key private.key --output-public-key public.key
    """
    private, public = new_key_pair(algorithm)
    _write_new(output_private_key, private, 0o600)
    _write_new(output_public_key, public, 0o644)


@tokens.command()
@_algorithm("RS256")
@click.option("-s", "--subject", required=True, help="The role of who has the token.")
@click.option("-e", "--expiry-time", callback=duration, metavar="TIME", help="It holds for 30s, 3h, 5d, 52w.")
@_secret
@click.option("-pk", "--private-key", metavar="KEY", help="A path, file:// or data: of a private key.")
@click.option("-hs", "--headers", multiple=True, metavar="NAME=VALUE", help="Another header of the token.")
def create(
    algorithm: str,
    subject: str,
    expiry_time: timedelta | None,
    secret_key: str | None,
    private_key: str | None,
    headers: tuple[str, ...],
) -> None:
    """Print a token of a role, signed with a secret or a private key.

    Without --expiry-time it holds for ever: only another key ends it.

    \b
    Example:
      pulsar-ray tokens create --secret-key secret.key --subject shop --expiry-time 52w
    """
    source, algorithm = _one_key(secret_key, private_key, algorithm, "--private-key")
    if not subject.strip():
        raise click.UsageError("--subject is empty: name a role")
    pairs = dict(_pair(text) for text in headers)
    expires = None if expiry_time is None else int(time.time() + expiry_time.total_seconds())
    key = signing_key(source, algorithm, "--secret-key" if secret_key else "--private-key")
    write_line(create_token(key, algorithm, subject, expires, pairs))


@tokens.command()
@_token
def show(token: str | None, stdin: bool, token_file: str | None) -> None:
    """Print what a token says, whoever signed it: header, ---, and claims.

    \b
    Example:
      pulsar-ray tokens show eyJhbGciOiJIUzI1NiJ9...
    """
    header, claims = show_token(_given(token, stdin, token_file))
    for part in (json.dumps(header), "---", json.dumps(claims)):
        write_line(part)


@tokens.command()
@_token
@_algorithm("RS256")
@_secret
@click.option("-pk", "--public-key", metavar="KEY", help="A path, file:// or data: of a public key.")
def validate(
    token: str | None,
    stdin: bool,
    token_file: str | None,
    algorithm: str,
    secret_key: str | None,
    public_key: str | None,
) -> None:
    """Print the claims of a token that is valid, or say why it is not.

    \b
    Example:
      pulsar-ray tokens validate --secret-key secret.key --token-file token
    """
    source, algorithm = _one_key(secret_key, public_key, algorithm, "--public-key")
    if secret_key:
        rules = TokenRules.of_secret(source, "--secret-key")
    else:
        rules = TokenRules.of_public(source, algorithm, "--public-key")
    known = rules.check(_given(token, stdin, token_file), time.time())
    write_line(json.dumps(dict(known.claims)))


def _one_key(secret: str | None, other: str | None, algorithm: str, option: str) -> tuple[str, str]:
    """Return the one key that is given, and its algorithm.

    A secret's is HS256 unless another is named.
    """
    if (secret is None) == (other is None):
        raise click.UsageError(f"give either --secret-key or {option}")
    if secret is not None:
        return secret, algorithm if algorithm in SECRET_BYTES else "HS256"
    return str(other), algorithm


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise click.UsageError(f"--headers {text!r:.100}: give name=value")
    if name == "alg":
        raise click.UsageError("--headers: alg is given by --signature-algorithm")
    return name, value


def _given(token: str | None, stdin: bool, token_file: str | None) -> str:
    """Return the token, from where it is said to be."""
    if token:
        return token
    if stdin:
        return sys.stdin.read(1 << 20).strip()
    if token_file:
        try:
            return Path(token_file).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise click.ClickException(f"{token_file} cannot be read: {error}") from None
    if os.environ.get("TOKEN"):
        return os.environ["TOKEN"]
    raise click.UsageError("give a token, --stdin, --token-file, or the variable TOKEN")


def _write_new(path: str, content: bytes, mode: int) -> None:
    """Write a key to a new file.

    Tokens of a key that is overwritten are of no use any more.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise click.ClickException(f"{path} is there already: remove it first, or name another") from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
    with open(descriptor, "wb") as file:
        file.write(content)
    say(f"wrote {path}")
