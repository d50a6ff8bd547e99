"""Whether a ledger whose files are gone was deleted by its partition, or lost.

A partition names the ledgers that it deletes in its manifest, durably, before it removes their files. So
whoever misses a file and can read the directory finds the answer there, without asking anybody.
"""

from __future__ import annotations

from pathlib import Path

from pulsar_ray.errors import CorruptData, UnsupportedFormatVersion
from pulsar_ray.managed_ledger.log.manifest.manifest_log import read_manifest

NONE_TRIMMED = -1
_TRIES = 3


def last_trimmed_ledger(directory: Path) -> int:
    """Return the highest ledger id of a partition's directory that was trimmed.

    NONE_TRIMMED if none was, and if the manifest cannot be read: then nothing excuses a file that is gone.
    Reads the manifest, on the caller's thread; the directory may have any owner.
    """
    for _ in range(_TRIES):
        try:
            content = read_manifest(directory)
        except FileNotFoundError:  # a new owner has replaced it just now
            continue
        except (CorruptData, UnsupportedFormatVersion, OSError):
            return NONE_TRIMMED
        return NONE_TRIMMED if content is None else content.manifest.trimmed.ledger_id
    return NONE_TRIMMED
