"""Entry point of the pulsar-ray command."""

from __future__ import annotations

import click

from pulsar_ray import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pulsar-ray")
def main() -> None:
    """Run and use a durable broker inside a Ray cluster."""
