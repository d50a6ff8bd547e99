"""Run Python programs in this process as `python FILE` does."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any


def is_python(path: Path) -> bool:
    """Whether the file can be compiled; says on standard error why not, as Python does."""
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: a zero byte
        traceback.print_exception(error.with_traceback(None))
        return False
    return True


def run_file(path: Path, arguments: Sequence[str]) -> int:
    """Run the file with these arguments, and return its exit code.

    An error that it raises is shown with its traceback and is exit code 1; KeyboardInterrupt goes through.
    """
    with _as_main_program(path, arguments):
        return _guarded(lambda: runpy.run_path(str(path), run_name="__main__"), str(path))


def run_source(source: str, name: str, names: dict[str, Any]) -> int:
    """Run statements with these names defined, and return their exit code, as `run_file` does."""
    return _guarded(lambda: exec(compile(source, name, "exec"), names), name)  # noqa: S102 - the user's own


def _guarded(program: Callable[[], object], name: str) -> int:
    try:
        program()
    except SystemExit as exit_:
        return _exit_code(exit_)
    except Exception as error:  # noqa: BLE001 - as Python does with whatever a program raises
        traceback.print_exception(error.with_traceback(_within(name, error.__traceback__)))
        return 1
    return 0


@contextmanager
def _as_main_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    directory = str(path.resolve().parent)
    argv = sys.argv
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.argv = argv
        if directory in sys.path:
            sys.path.remove(directory)


def _exit_code(exit_: SystemExit) -> int:
    if exit_.code is None:
        return 0
    if isinstance(exit_.code, int):
        return exit_.code
    sys.stderr.write(f"{exit_.code}\n")
    return 1


def _within(name: str, frames: TracebackType | None) -> TracebackType | None:
    """The frames from the program's own on; none of the command that runs the program."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code.co_filename != name:
        inner = inner.tb_next
    return inner
