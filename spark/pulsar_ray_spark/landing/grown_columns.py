"""Columns of a landing's files may be added; others would make its files unreadable together."""

from __future__ import annotations

import pyarrow as pa

from pulsar_ray_spark.errors import LandingMismatch


def check_grown(landed: pa.DataType, wanted: pa.DataType, name: str, path: str = "value") -> None:
    """Raise LandingMismatch for columns that files with the landed ones cannot be read with.

    Columns that are new are null in older files, in structs too; those that are gone are in older files only.
    """
    if pa.types.is_struct(landed) and pa.types.is_struct(wanted):
        known = {field.name: field.type for field in landed}
        for field in wanted:
            if field.name in known:
                check_grown(known[field.name], field.type, name, f"{path}.{field.name}")
    elif pa.types.is_list(landed) and pa.types.is_list(wanted):
        check_grown(landed.value_type, wanted.value_type, name, f"{path}[]")
    elif pa.types.is_map(landed) and pa.types.is_map(wanted):
        check_grown(landed.item_type, wanted.item_type, name, f"{path}[]")
    elif landed != wanted:
        raise LandingMismatch(
            f"landing {name!r} has files in which {path} is {landed}, and the topic's newest schema has "
            f"{wanted}: parquet files of both cannot be read together; land under another name and path, "
            "from where this one ended, or go on after the schema has the former type again"
        )
