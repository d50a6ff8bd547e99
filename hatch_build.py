"""Compiles the modules that each message runs through, for wheels and in a checkout (ADR 0125).

hatchling calls the hook when it builds a wheel. `python hatch_build.py` compiles in its own checkout.

`PULSAR_RAY_PURE=1` compiles nothing, `PULSAR_RAY_PURE=0` insists on it. Without either, a wheel is pure where
there is no C compiler.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "pulsar_ray"
GROUP = "pulsar_ray.compiled"
"""Of this name and `__mypyc` is the library that all compiled modules share."""
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
STAMP = PACKAGE / f".compiled.{sys.implementation.cache_tag}.json"
"""Says of what sources the libraries beside them were made; `pulsar_ray/__init__.py` looks at it."""
_MYPY_OPTIONS = (
    "--config-file=",
    # Other packages may be installed or not: what is compiled is the same.
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)
_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")


class CannotCompile(Exception):
    """Modules cannot be compiled here; says why."""


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Puts compiled modules beside their sources into a wheel."""

    _built: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Name the compiler, of the version that the checkout is checked with."""
        return [] if obstacle() else [compiler_requirement()]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; an editable installation uses the checkout, where `python hatch_build.py` does so."""
        if version != "standard" or self.target_name != "wheel":
            return
        self._built = tempfile.TemporaryDirectory(prefix="pulsar-ray-compiled-")
        try:
            libraries = compiled(Path(self._built.name))
        except CannotCompile as error:
            if os.environ.get("PULSAR_RAY_PURE") == "0":
                raise
            self.app.display_info(f"a pure wheel: {error}")
            return
        for library in libraries:
            build_data["force_include"][str(Path(self._built.name) / library)] = str(library)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel by now."""
        if self._built is not None:
            self._built.cleanup()


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    content: dict[str, Any] = _toml.loads((ROOT / "pyproject.toml").read_text())
    return content


def sources() -> list[Path]:
    """Return the files of the modules to compile, relative to the checkout."""
    modules = project()["tool"]["pulsar_ray"]["compiled"]["modules"]
    return [Path(*module.split(".")).with_suffix(".py") for module in modules]


def compiler_requirement() -> str:
    """Return the development requirement on mypy."""
    dev: list[str] = project()["project"]["optional-dependencies"]["dev"]
    return next(each for each in dev if each.startswith("mypy["))


def obstacle() -> str:
    """Say why nothing is to be compiled here, as far as that can be known beforehand."""
    if os.environ.get("PULSAR_RAY_PURE", "0") not in ("", "0"):
        return "PULSAR_RAY_PURE is set"
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    command = shlex.split(os.environ.get("CC") or str(sysconfig.get_config_var("CC") or "cc"))
    if shutil.which(command[0]) is None:
        return f"there is no C compiler ({command[0]})"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's header files are not installed"
    return ""


def compiled(directory: Path) -> list[Path]:
    """Compile into a directory. Returns the libraries, relative to it. Raises CannotCompile."""
    reason = obstacle()
    if not reason and (find_spec("mypyc") is None or find_spec("setuptools") is None):
        reason = f"{compiler_requirement()} is not installed"
    if reason:
        raise CannotCompile(reason)
    # In a process of its own: mypyc prints, and ends the process, where something is wrong.
    done = subprocess.run(
        [sys.executable, str(ROOT / "hatch_build.py"), "--into", str(directory)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotCompile(f"the compiler failed:\n{done.stdout[-8000:]}")
    return sorted(path.relative_to(directory) for path in directory.rglob(f"*{SUFFIX}"))


def _compile_into(directory: Path) -> None:
    """Run mypyc and the C compiler; ends the process where something is wrong."""
    setuptools, mypyc = import_module("setuptools"), import_module("mypyc.build")
    build_ext = import_module("setuptools.command.build_ext").build_ext
    scratch = directory / "scratch"
    extensions = mypyc.mypycify(
        [*_MYPY_OPTIONS, f"--cache-dir={os.devnull}", *map(str, sources())],
        opt_level="2",
        debug_level="0",
        group_name=GROUP,
        target_dir=str(scratch),
    )
    command = build_ext(setuptools.Distribution({"name": "pulsar-ray", "ext_modules": extensions}))
    command.build_lib, command.build_temp = str(directory), str(scratch)
    command.ensure_finalized()
    command.run()
    shutil.rmtree(scratch)


def _made_of() -> dict[str, Any]:
    """Return checksums of the sources, and what else decides on the libraries."""
    files = {str(source.relative_to(PACKAGE.name)): ROOT / source for source in sources()}
    return {
        "sources": {name: _checksum(path) for name, path in files.items()},
        "compiled by": [_checksum(Path(__file__)), compiler_requirement()],
    }


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _remove_compiled() -> None:
    STAMP.unlink(missing_ok=True)
    for library in PACKAGE.rglob(f"*{SUFFIX}"):
        library.unlink()


def compile_in_place() -> None:
    """Put the libraries beside their sources, unless they are there and of these sources."""
    made_of = _made_of()
    with contextlib.suppress(OSError, ValueError):
        if not obstacle() and json.loads(STAMP.read_text()) == made_of:
            return
    _remove_compiled()
    with tempfile.TemporaryDirectory(prefix="pulsar-ray-compiled-") as made:
        try:
            libraries = compiled(Path(made))
        except CannotCompile as error:
            print(f"pulsar_ray runs interpreted: {error}")  # noqa: T201
            return
        for library in libraries:
            shutil.copy(Path(made) / library, ROOT / library)
    STAMP.write_text(json.dumps(made_of, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--into"]:
        _compile_into(Path(sys.argv[2]))
    else:
        compile_in_place()
