"""Names of landed files: topic, range of positions and round.

The same range of the same round always has the same name, so that a file that is written again after a crash
is the same file to whoever has read it.
"""

from __future__ import annotations

import hashlib
import re

from pulsar_ray.model.position import Position
from pulsar_ray.model.topic_name import TopicName

SUFFIX = ".parquet"
# File systems take 255 bytes; positions and the round need up to 110.
_MAX_TOPIC_CHARACTERS = 140
_DIGEST_CHARACTERS = 16
# Spark skips files that begin with _ or a full stop, and takes % and = for something else.
_ESCAPED = re.compile(r"[^A-Za-z0-9-]")
_ROUND = re.compile(r"--(\d+)" + re.escape(SUFFIX) + "$")


def file_name(topic: str, first: Position, end: Position, round_number: int) -> str:
    """Name the file of a topic's (or partition's) messages from `first` to before `end`."""
    name = TopicName.parse(topic).full.split("://", 1)[1]
    escaped = _ESCAPED.sub(lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), name)
    if len(escaped) > _MAX_TOPIC_CHARACTERS:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
        escaped = f"{escaped[: _MAX_TOPIC_CHARACTERS - _DIGEST_CHARACTERS - 1]}-{digest}"
    positions = "--".join(f"{position.ledger_id}.{position.entry_id}" for position in (first, end))
    return f"{escaped}--{positions}--{round_number}{SUFFIX}"


def round_of(name: str) -> int | None:
    """The round that a file was landed in, None for other files."""
    match = _ROUND.search(name)
    return int(match[1]) if match else None
