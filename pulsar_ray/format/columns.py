"""The canonical columns of an Arrow payload, as the bits of a block header's `columns`."""

from __future__ import annotations

VALUE_COLUMN = 1
KEY_COLUMN = 2
ORDERING_KEY_COLUMN = 4
PROPERTIES_COLUMN = 8
EVENT_TIME_COLUMN = 16
SEQUENCE_ID_COLUMN = 32
KNOWN_COLUMNS = 63
