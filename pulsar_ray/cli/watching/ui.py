"""`pulsar-ray ui`: the page, in a browser."""

from __future__ import annotations

import webbrowser

import click

from pulsar_ray.cli.console import say, write_line
from pulsar_ray.cli.target import WAITING, Target, pass_target
from pulsar_ray.cli.watching.progress import progress
from pulsar_ray.errors import NotAllowedError
from pulsar_ray.gateway.gateway_actor import gateway_url


@click.command()
@click.option("--no-open", is_flag=True, help="Print the address alone.")
@pass_target
def ui(target: Target, no_open: bool) -> None:
    """Open the page that shows topics, messages and nodes; a broker with --http serves it."""
    with progress(WAITING):
        target.session()
        url = gateway_url()
    if not url:
        raise NotAllowedError("no HTTP is served: run `pulsar-ray start --http 8080`, or standalone --http")
    write_line(url)
    if not no_open and not webbrowser.open(url):
        say("no browser was found here: open the address in one")
