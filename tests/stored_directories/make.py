"""Make the stored directory of this version: `python -m tests.stored_directories.make`.

Run it once, just before a version is released; what is there is never made anew. Every later version has to
open it, or to refuse it by UnsupportedFormatVersion.
"""

from __future__ import annotations

import gzip
import io
import sys
import tarfile
import tempfile
from pathlib import Path

from pulsar_ray import __version__
from pulsar_ray.managed_ledger.store.store_identity import StoreIdentity, write_identity
from pulsar_ray.testing.stub_cluster import STORE
from tests.stored_directories.contents import HERE, fill

_LEFT_OUT = ("owner.lock", "store.lock", "cluster.lock", "reach")


def pack(directory: Path) -> bytes:
    """Pack a data directory without what belongs to processes."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name not in _LEFT_OUT:
                entry = tarfile.TarInfo(str(path.relative_to(directory)))
                entry.size, entry.mode = path.stat().st_size, 0o600
                with path.open("rb") as content:
                    archive.addfile(entry, content)
    return packed.getvalue()


def main() -> int:
    """Write the directory of this version beside this file."""
    target = HERE / f"{__version__}.tar.gz"
    if target.exists():
        print(f"{target} is there, and stays as it is")
        return 1
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        fill(directory)
        write_identity(directory, StoreIdentity(STORE))
        target.write_bytes(pack(directory))
    print(f"{target}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
