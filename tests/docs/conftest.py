from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.new_user import new_environment


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    with new_environment(tmp_path) as variables:
        yield variables
