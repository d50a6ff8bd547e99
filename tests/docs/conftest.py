from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.new_user import new_environment


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One new user's machine for a module: what runs second finds the broker that the first one started."""
    with new_environment(tmp_path_factory.mktemp("user")) as variables:
        yield variables
