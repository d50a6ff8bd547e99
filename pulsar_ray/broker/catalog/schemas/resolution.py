"""Finds where one schema of Avro cannot read what another one writes.

The rules are those of Avro's schema resolution as Pulsar's broker applies them: names of records and enums,
and the symbols of enums, are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pulsar_ray.broker.catalog.schemas.avro_types import AvroType

_READ_AS: Final = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"),
    ("float", "double"), ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
"""Types of the writer, and the others that a reader may have for them."""
MAX_STEPS: Final = 300_000
MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Misfit:
    """A place in the reader's schema that cannot take what the writer may have written."""

    path: str
    reason: str
    remedy: str = ""


class Effort:
    """Bounds what is compared for one answer.

    Hostile schemas may have very many pairs of types.
    """

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._left = steps

    def step(self) -> None:
        """Count one pair of types. Raises ValueError where it was too many."""
        self._left -= 1
        if self._left < 0:
            raise ValueError("the schemas are too large to be compared: make them smaller")


def misfits(reader: AvroType, writer: AvroType, effort: Effort) -> list[Misfit]:
    """Return the first places in which the reader fails; none if it reads everything."""
    return list(islice(_Resolution(effort).between(reader, writer, ""), MOST_NAMED))


class _Resolution:
    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._fit: dict[tuple[int, int], bool] = {}
        self._under_way: set[tuple[int, int]] = set()

    def between(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Misfit]:
        self._effort.step()
        pair = id(reader), id(writer)
        # A type that contains itself fits as far as all else does.
        if pair in self._under_way or self._fit.get(pair, False):
            return
        self._under_way.add(pair)
        fits = True
        try:
            for misfit in self._of_kinds(reader, writer, path):
                fits = False
                yield misfit
        finally:
            self._under_way.discard(pair)
        self._fit[pair] = fits

    def _of_kinds(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Misfit]:
        if writer.kind == "union":
            for branch in writer.branches:
                yield from self.between(reader, branch, path)
            return
        if reader.kind == "union":
            if not any(self._fits(branch, writer, path) for branch in reader.branches):
                names = ", ".join(str(branch) for branch in reader.branches[:MOST_NAMED])
                yield Misfit(path, f"{writer} cannot be read as one of [{names}]", _as_nullable(writer))
            return
        if reader.kind != writer.kind:
            if (writer.kind, reader.kind) not in _READ_AS:
                yield Misfit(path, f"{writer} cannot be read as {reader}", _as_nullable(writer))
        elif reader.kind == "record":
            yield from self._of_fields(reader, writer, path)
        elif reader.items is not None and writer.items is not None:
            suffix = "[]" if reader.kind == "array" else "{}"
            yield from self.between(reader.items, writer.items, path + suffix)
        elif reader.size != writer.size:
            yield Misfit(path, f"{writer.size} bytes cannot be read as {reader.size}")

    def _of_fields(self, reader: AvroType, writer: AvroType, path: str) -> Iterator[Misfit]:
        for name, field in reader.fields.items():
            place = f"{path}.{name}" if path else name
            written = next((each for each in (name, *field.aliases) if each in writer.fields), None)
            if written is not None:
                yield from self.between(field.type, writer.fields[written].type, place)
            elif not field.has_default:
                yield Misfit(
                    place,
                    "what was written has no such field, and there is no default for it",
                    f"give the field {name!r} a default (a Record's: required_default=True)",
                )

    def _fits(self, reader: AvroType, writer: AvroType, path: str) -> bool:
        pair = id(reader), id(writer)
        known = self._fit.get(pair)
        if known is None:
            known = next(self.between(reader, writer, path), None) is None
            if not known:
                # The rest of its misfits is not looked for.
                self._fit[pair] = False
        else:
            self._effort.step()
        return known


def _as_nullable(writer: AvroType) -> str:
    return "read it as a union with null" if writer.kind == "null" else ""
