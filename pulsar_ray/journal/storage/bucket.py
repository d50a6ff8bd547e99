"""Object stores by their address: `s3://`, `gs://` and `az://` over obstore, `file://` our own."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pulsar_ray.errors import RemoteStoreNotInstalled, RemoteStoreRefused, RemoteStoreUnavailable
from pulsar_ray.journal.storage.file_store import FileStore
from pulsar_ray.journal.storage.object_store import Listed

REQUEST_TIMEOUT = "30s"
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AZURE_STORAGE_ENDPOINT")
"""An endpoint of `http://` in one of these is meant."""


def open_object_store(url: str, **options: Any) -> Bucket | FileStore:
    """Return the store at an address; `options` are obstore's, and else come from the environment."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc or not parts.path.startswith("/"):
            raise RemoteStoreRefused(f"{url}: a shared directory is written as file:///path")
        return FileStore(Path(unquote(parts.path)))
    if parts.scheme not in ("s3", "gs", "az") or not parts.netloc:
        raise RemoteStoreRefused(f"{url}: remote stores are s3://, gs://, az:// and file://")
    return Bucket(url, options)


_NO_BUCKET = "NoSuchBucket"
_RIGHTS = (
    "look at the credentials in the environment of Ray's nodes, and at the rights that docs/remote.md lists"
)
_REMEDIES = {
    "169.254.169.254": "no credentials are set, and the role of the instance cannot be asked: set them in "
    "the environment of Ray's nodes",
    "RequestTimeTooSkewed": "the clock of this machine is wrong: set it, and keep it right with NTP",
    _NO_BUCKET: "make the bucket, or look at its name, the region and the endpoint",
    "403 Forbidden": _RIGHTS,
    "401 Unauthorized": _RIGHTS,
}
"""By what stands in an error."""


class Bucket:
    """A bucket, or a prefix in one."""

    def __init__(self, url: str, options: dict[str, Any]) -> None:
        self._url = url.rstrip("/")
        try:
            self._obstore = importlib.import_module("obstore")
            stores = importlib.import_module("obstore.store")
            self._errors = importlib.import_module("obstore.exceptions")
        except ImportError as error:
            raise RemoteStoreNotInstalled from error
        # Client options that are given hide the variable for this one.
        is_plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINT_VARIABLES)
        given = {"timeout": REQUEST_TIMEOUT, "allow_http": is_plain, **options.pop("client_options", {})}
        try:
            # Requests are repeated by the journal, who compares what it finds.
            self._store = stores.from_url(
                url, client_options=given, retry_config={"max_retries": 0}, **options
            )
        except self._errors.BaseError as error:
            raise RemoteStoreRefused(f"{url}: {_first_line(error)}") from error

    def create(self, key: str, body: bytes) -> bool:
        """Write an object unless there is one."""
        try:
            # In parts it would not be create-only.
            self._obstore.put(self._store, key, body, mode="create", use_multipart=False)
        except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
            return False
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._typed(key, error) from error
        return True

    def get(self, key: str) -> memoryview | None:
        """Return an object's bytes, None if there is none."""
        try:
            return memoryview(self._obstore.get(self._store, key).bytes())
        except (FileNotFoundError, self._errors.NotFoundError) as error:
            self._refuse_missing_bucket(key, error)
            return None
        except self._errors.BaseError as error:
            raise self._typed(key, error) from error

    def head(self, key: str) -> int | None:
        """Return an object's length, None if there is none."""
        try:
            return int(self._obstore.head(self._store, key)["size"])
        except (FileNotFoundError, self._errors.NotFoundError):
            return None
        except self._errors.BaseError as error:
            raise self._typed(key, error) from error

    def list(self, prefix: str) -> list[str]:
        """Return the sorted names below a prefix."""
        try:
            listed = self._obstore.list(self._store, prefix.removesuffix("/"))
            return sorted(item["path"] for batch in listed for item in batch)
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._typed(prefix, error) from error

    def measured(self) -> Iterator[Listed]:
        """Yield all objects below the prefix, with their sizes; raises as `list`."""
        try:
            for batch in self._obstore.list(self._store):
                for item in batch:
                    yield Listed(item["path"], int(item["size"]), item["last_modified"].timestamp())
        except (FileNotFoundError, self._errors.BaseError) as error:
            raise self._typed("the list of all objects", error) from error

    def delete(self, keys: tuple[str, ...]) -> None:
        """Delete the objects that are there."""
        for begin in range(0, len(keys), 1000):
            try:
                self._obstore.delete(self._store, list(keys[begin : begin + 1000]))
            except (FileNotFoundError, self._errors.NotFoundError):
                continue
            except self._errors.BaseError as error:
                raise self._typed(keys[begin], error) from error

    def _refuse_missing_bucket(self, key: str, error: Exception) -> None:
        if "NoSuchBucket" in str(error):
            raise self._typed(key, error) from error

    def _typed(self, key: str, error: Exception) -> RemoteStoreRefused | RemoteStoreUnavailable:
        lasting = (
            FileNotFoundError,
            self._errors.NotFoundError,
            self._errors.PermissionDeniedError,
            self._errors.UnauthenticatedError,
            self._errors.NotSupportedError,
        )
        text = str(error)
        is_lasting = isinstance(error, lasting) or _NO_BUCKET in text
        kind = RemoteStoreRefused if is_lasting else RemoteStoreUnavailable
        remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in text), "")
        return kind(": ".join(filter(None, (f"{self._url}/{key}", _said(error), remedy))))


def _said(error: Exception) -> str:
    """Return what the object store says, or else its client."""
    found = [re.search(f"<{name}>([^<]+)</{name}>", str(error)) for name in ("Code", "Message")]
    return ": ".join(each[1] for each in found if each) or _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
