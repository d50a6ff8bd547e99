"""The checked arguments of the client's calls, under one name."""

from __future__ import annotations

from pulsar_ray.client.client_options import ClientOptions
from pulsar_ray.client.consumer_options import ConsumerOptions, ReaderOptions
from pulsar_ray.client.producer_options import ProducerOptions

__all__ = ["ClientOptions", "ConsumerOptions", "ProducerOptions", "ReaderOptions"]
