"""The client for asyncio: the same classes with `await`, on the program's own event loop.

import pulsar_ray.asyncio

async with pulsar_ray.asyncio.Client() as client:
    producer = await client.create_producer("my-topic")
    await producer.send(b"hello")
"""

from pulsar_ray.asyncio.admin import Admin
from pulsar_ray.asyncio.client import Client
from pulsar_ray.asyncio.consumer import Consumer
from pulsar_ray.asyncio.producer import Producer
from pulsar_ray.asyncio.reader import Reader
from pulsar_ray.errors import PulsarException

__all__ = ["Admin", "Client", "Consumer", "Producer", "PulsarException", "Reader"]
