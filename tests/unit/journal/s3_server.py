"""An S3 server of this machine, whose bucket does create-only writes right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import boto3
from moto.moto_server import threaded_moto_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer

from pulsar_ray.journal.storage.bucket import Bucket, open_object_store
from pulsar_ray.journal.storage.file_store import FileStore

KEYS = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}


class _WritesInTurn(DomainDispatcherApplication):
    """Answers writes one after the other: moto's threads may look both before either writes."""

    _turn = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["REQUEST_METHOD"] != "PUT":
            return super().__call__(environ, start_response)
        with self._turn:
            return super().__call__(environ, start_response)


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with an empty bucket named `bucket`; yields its address."""
    moto = ThreadedMotoServer(port=0, verbose=False)
    with patch.object(threaded_moto_server, "DomainDispatcherApplication", _WritesInTurn):
        moto.start()
    host, port = moto.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
    )
    client.create_bucket(Bucket="bucket")
    yield url
    moto.stop()


def bucket(server: str, url: str = "s3://bucket/some/prefix") -> Bucket | FileStore:
    """Open a prefix in a bucket of the server."""
    return open_object_store(url, endpoint=server, client_options={"allow_http": True}, **KEYS)
