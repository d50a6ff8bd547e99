"""Notes in a partition's directory that it moves, or has moved (ADR 0141).

Without them a rebuilt catalog could not tell two directories of one partition from each other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pulsar_ray.errors import CorruptData
from pulsar_ray.ledger.disk import SYSTEM_DISK, write_whole

MOVE_NOTE = "moved"
ARRIVING, DEPARTING = "arriving", "departing"


class MoveNote(NamedTuple):
    """The moves of a partition: their count, and the last one's state here.

    `state` is "" when that is over.
    """

    hops: int = 0
    state: str = ""
    move_id: str = ""

    @property
    def rank(self) -> tuple[bool, int]:
        """Return a rank, of which the right one of two directories has the higher.

        An arriving one was never served, so it counts only if there is nothing else.
        """
        return (self.state != ARRIVING, self.hops)


def read_move_note(directory: Path) -> MoveNote:
    """Return a directory's note. Raises CorruptData for one that nobody can read, OSError."""
    path = directory / MOVE_NOTE
    try:
        hops, state, move_id = json.loads(path.read_bytes())
        return MoveNote(int(hops), str(state), str(move_id))
    except (FileNotFoundError, NotADirectoryError):
        return MoveNote()
    except (ValueError, TypeError) as error:
        raise CorruptData(str(path), 0, f"not a note of a move ({error})") from None


def write_move_note(directory: Path, note: MoveNote) -> None:
    """Make it the directory's note, durably. Raises OSError."""
    write_whole(SYSTEM_DISK, directory / MOVE_NOTE, json.dumps(list(note)).encode())


def note_arrival(directory: Path) -> None:
    """Note durably that a partition which has moved here is served here.

    Raises OSError.
    """
    note = read_move_note(directory)
    if note.state:
        write_move_note(directory, MoveNote(note.hops))
