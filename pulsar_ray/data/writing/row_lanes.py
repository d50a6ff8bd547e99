"""Divide a task's rows among the partitions of a topic.

The same rows are divided the same way at each run.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pulsar_ray.client.producer.bulk.bulk_columns import dictionary_codes
from pulsar_ray.client.producer.routing import key_hash_function
from pulsar_ray.model.enums import HashingScheme

ROWS_PER_TURN = 8192
"""Of rows without a key, so many in a row go to one partition."""


def row_lanes(
    table: pa.Table, task: int, partitions: int, scheme: HashingScheme = HashingScheme.JavaStringHash
) -> dict[int, pa.Table]:
    """Divide rows by the index of the partition that each goes to; their order stays.

    Keys go by hash, as every producer with this scheme sends them. Rows without one take turns, which begin
    at another partition for each task.
    """
    if table.num_rows == 0:
        return {}
    if partitions == 1:
        return {0: table}
    turns = (np.arange(table.num_rows) // ROWS_PER_TURN + task) % partitions
    keys, key_of_row = dictionary_codes(table, "key")
    key_hash = key_hash_function(scheme)
    by_key = np.array([*(key_hash(key) % partitions if key else -1 for key in keys), -1], dtype=np.int64)
    targets = by_key[key_of_row]
    targets = np.where(targets < 0, turns, targets)
    used = np.unique(targets)
    if len(used) == 1:
        return {int(used[0]): table}
    return {int(index): table.filter(pa.array(targets == index)) for index in used}
