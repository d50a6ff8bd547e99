from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_ray.errors import WrongNode
from pulsar_ray.managed_ledger.store.known_stores import init_store


def test_an_empty_directory_that_was_a_store_is_not_made_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    disk, mount = tmp_path / "disk", tmp_path / "mount"
    identity, is_new = init_store(mount)
    assert is_new
    assert init_store(mount) == (identity, False)
    mount.rename(disk)
    mount.mkdir()
    with pytest.raises(WrongNode, match=rf"was store {identity.store_id} and is empty now.*--replace"):
        init_store(mount)
    assert not list(mount.iterdir())
    other, is_new = init_store(mount, replace=True)
    assert is_new
    assert other != identity
    assert init_store(tmp_path / "second")[1]
