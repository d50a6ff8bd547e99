"""The columns of received tables."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from pulsar_ray.format.block import MAX_ROWS

TIME = pa.timestamp("ms", tz="UTC")

TABLE_SCHEMA = pa.schema(
    [
        ("key", pa.utf8()),
        ("value", pa.binary()),
        ("ordering_key", pa.utf8()),
        ("properties", pa.map_(pa.utf8(), pa.utf8())),
        ("topic", pa.utf8()),
        ("partition", pa.int32()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("publish_time", TIME),
        ("event_time", TIME),
        ("sequence_id", pa.int64()),
        ("producer_name", pa.utf8()),
        ("schema_version", pa.binary()),
        ("redelivery_count", pa.int32()),
    ]
)
"""The columns; absent keys, properties, event times and schema versions are null.

Tombstones are a null value; -1 is "no batch index" and "no partition", as in MessageId.
"""

NUMBERS = pa.array(np.arange(MAX_ROWS, dtype=np.int32))
"""The batch indexes of a whole batch are a part of these."""
