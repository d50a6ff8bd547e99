"""A durable broker with Apache Pulsar's semantics inside a Ray cluster."""

import sys

__version__ = "0.1.0"

if sys.platform != "linux":
    raise ImportError(
        f"pulsar_ray runs on Linux only (fdatasync, pidfd and SO_PEERCRED are missing on {sys.platform}). "
        "Use a Linux container, for example: docker run -it -v $PWD:/app -w /app python:3.12 bash"
    )
