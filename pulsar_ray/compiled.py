"""Says which modules run compiled, and runs their sources on request.

ADR 0125 says why.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

PURE = "PULSAR_RAY_PURE"
_PACKAGE = Path(__file__).parent
_STAMP = _PACKAGE / f".compiled.{sys.implementation.cache_tag}.json"
"""Of a checkout: the sources that its libraries were made of. A wheel has none."""


class SourceFinder:
    """Finds sources of this package where Python would take libraries beside them."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the source of a module of ours; None leaves it to others."""
        if fullname.startswith("pulsar_ray."):
            for directory in path or ():
                spec = _sources_in(directory).find_spec(fullname)
                if spec is not None and spec.loader is not None:
                    return spec
        return None


@functools.cache
def _sources_in(directory: str) -> FileFinder:
    return FileFinder(directory, (SourceFileLoader, SOURCE_SUFFIXES))


def choose() -> None:
    """Let sources run if libraries are not wanted, or not of these sources.

    It is called before any other module is imported.
    """
    if _why_not():
        sys.meta_path.insert(0, SourceFinder)


@functools.cache
def _why_not() -> str:
    """Say why libraries are not to be used; empty if they may be."""
    if os.environ.get(PURE, "") not in ("", "0"):
        return f"{PURE} is set"
    with suppress(OSError):
        made_of: dict[str, str] = json.loads(_STAMP.read_bytes())["sources"]
        changed = [name for name, checksum in made_of.items() if _checksum(_PACKAGE / name) != checksum]
        if changed:
            return f"{', '.join(changed)} changed since modules were compiled: `make setup` does it anew"
    return ""


def _checksum(path: Path) -> str:
    with suppress(OSError):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def compiled_modules() -> list[str]:
    """Name the modules that this process takes compiled, imported or not."""
    if _why_not():
        return []
    suffix = EXTENSION_SUFFIXES[0]
    places = [path.relative_to(_PACKAGE.parent) for path in _PACKAGE.rglob(f"*{suffix}")]
    names = [".".join(place.parts).removesuffix(suffix) for place in places]
    return sorted(name for name in names if not name.endswith("__mypyc"))


def describe() -> str:
    """Say which modules of this package run compiled, or why none does."""
    modules = compiled_modules()
    if not modules:
        return f"interpreted ({_why_not() or 'no module is compiled here'})"
    names = (name.removeprefix("pulsar_ray.") for name in modules)
    return f"{len(modules)} modules compiled ({', '.join(names)})"
