from __future__ import annotations

import pytest

from pulsar_ray.actors.connect import join_ray
from pulsar_ray.errors import ConnectError


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "127.0.0.1:99999", "[::1]:1", "no-such-host.invalid:6379"]
)
def test_an_address_where_nobody_listens_is_refused_without_asking_ray(address: str) -> None:
    with pytest.raises(ConnectError, match=r"no Ray cluster answers at .*ray start"):
        join_ray(address)
