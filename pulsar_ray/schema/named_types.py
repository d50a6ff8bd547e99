"""Names of records and enums in one definition, each of which is spelled out once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class NamedType(Protocol):
    """Has a definition in Avro, which other definitions call by a name."""

    def schema(self) -> Any: ...


class NamedTypes:
    """Holds the types that a definition has spelled out so far.

    A type without a namespace of its own is in that of the record around it. So one class that lies in two
    namespaces is two types, and each is spelled out.
    """

    def __init__(self, known: Iterable[str] = (), namespace: str | None = None) -> None:
        self._first: dict[str, tuple[Any, NamedType] | None] = dict.fromkeys(known)
        self._namespace = namespace

    @property
    def known(self) -> Iterable[str]:
        """Full names of all types that are spelled out."""
        return self._first.keys()

    def inside(self, namespace: str | None) -> NamedTypes:
        """Return the same names, for what lies in a record of this namespace.

        None is one without a namespace of its own.
        """
        if namespace is None:
            return self
        inner = NamedTypes(namespace=namespace)
        inner._first = self._first
        return inner

    def is_new(self, name: str, kind: Any, described: NamedType) -> bool:
        """Return whether a type has to be spelled out here.

        Its name alone does from then on. Raises TypeError if the name is that of another class with another
        definition.
        """
        full = name if "." in name or not self._namespace else f"{self._namespace}.{name}"
        if full not in self._first:
            self._first[full] = kind, described
            return True
        first = self._first[full]
        if first is not None and first[0] is not kind:
            one, other = (each.schema() for each in (first[1], described))
            if one != other:
                raise TypeError(f"Two classes are called {full}, and one schema has both: rename one")
        return False
