"""Remembers which directories of this machine were made stores.

The note stands in the user's home, which is always mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from pulsar_ray.errors import BrokerPersistenceError, WrongNode
from pulsar_ray.managed_ledger.store.store_directory import create_store
from pulsar_ray.managed_ledger.store.store_identity import STORE_FILE, StoreIdentity


def init_store(path: Path, *, replace: bool = False) -> tuple[StoreIdentity, bool]:
    """Make a directory a store as `create_store` does, but protect one that lost its disk.

    A directory that was a store and is empty is only made another one if it may be replaced.

    Raises WrongNode then, and what `create_store` raises.
    """
    noted = _read()
    if not replace and str(path) in noted and not (path / STORE_FILE).exists():
        raise WrongNode(
            f"{path} was store {noted[str(path)]} and is empty now: mount its disk; if that is lost for "
            "good, begin another one with --replace"
        )
    identity, is_new = create_store(path)
    if noted.get(str(path)) != identity.store_id:
        _write({**noted, str(path): identity.store_id})
    return identity, is_new


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "pulsar-ray" / "stores.json"


def _read() -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        noted = json.loads(_file().read_text())
        if isinstance(noted, dict):
            return noted
    return {}


def _write(noted: dict[str, str]) -> None:
    file = _file()
    staged = file.with_suffix(f".{os.getpid()}.new")
    try:
        file.parent.mkdir(0o700, parents=True, exist_ok=True)
        staged.write_text(json.dumps(noted, indent=1))
        os.replace(staged, file)
    except OSError as error:
        raise BrokerPersistenceError(
            f"{file} cannot be written ({error}): it says which disks this machine has to have"
        ) from None
