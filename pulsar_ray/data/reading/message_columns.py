"""The columns of a message that a bulk read gives, and those of its blocks."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pulsar_ray.client.arrow.table_schema import TABLE_SCHEMA
from pulsar_ray.data.reading.block_schema import BLOCK_SCHEMA
from pulsar_ray.errors import InvalidConfiguration

MESSAGE_COLUMNS: tuple[str, ...] = tuple(TABLE_SCHEMA.names)
_OF_SOURCE = {"topic", "partition"}
_MADE = {*_OF_SOURCE, "redelivery_count"}


def as_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Normalise the columns wanted, None for all.

    Raises InvalidConfiguration for one that MESSAGE_COLUMNS lacks, for repeats, and for none.
    """
    if columns is None:
        return MESSAGE_COLUMNS
    names = (columns,) if isinstance(columns, str) else tuple(columns)
    for name in names:
        if name not in MESSAGE_COLUMNS:
            raise InvalidConfiguration(
                f"columns: {name!r} is no column of a topic; there are {', '.join(MESSAGE_COLUMNS)}"
            )
    if not names or len(set(names)) < len(names):
        raise InvalidConfiguration(f"columns={list(names)} must name at least one column, each once")
    return names


def block_columns(columns: Collection[str]) -> tuple[str, ...]:
    """The columns of BLOCK_SCHEMA that the columns of a message are made of."""
    wanted = {name for name in columns if name not in _MADE}
    if not wanted or _OF_SOURCE & set(columns):
        wanted.add("source")  # a block without any column would have no rows either
    return tuple(name for name in BLOCK_SCHEMA.names if name in wanted)
