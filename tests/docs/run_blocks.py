"""Runs Python and console blocks in one interpreter, as a reader who types them would.

python -m tests.docs.run_blocks FILE NUMBER...: ends with 1 at the first block that fails or prints something
else than it says.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
import traceback
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.docs.fences import Block, blocks_of, is_printed

COMMAND_TIMEOUT_S = 120


def run_python(block: Block, path: Path, names: dict[str, Any]) -> str:
    """Execute a block; why it is wrong, or ""."""
    output = io.StringIO()
    # Padded, so that tracebacks name the line in the file.
    code = compile("\n" * (block.line - 1) + block.text, str(path), "exec")
    try:
        with redirect_stdout(output):
            exec(code, names)
    except Exception:  # noqa: BLE001 - a block may fail in any way
        return traceback.format_exc()
    printed = output.getvalue().splitlines()
    if block.printed and not is_printed(block.printed, printed):
        return f"should print {block.printed}, printed {printed}"
    return ""


def run_console(block: Block) -> str:
    """Execute a block's commands; why it is wrong, or ""."""
    for command, wanted in block.commands:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if not is_printed(wanted, done.stdout.splitlines()):
            return f"$ {command}\nexit code {done.returncode}, printed:\n{done.stdout}"
    return ""


def main() -> int:
    """Run the blocks named on the command line."""
    path = Path(sys.argv[1])
    blocks = blocks_of(path)
    # Functions of the blocks travel into Ray tasks by value, as those of an interactive session do.
    names: dict[str, Any] = {"__name__": "__main__"}
    for number in map(int, sys.argv[2:]):
        block = blocks[number]
        began = time.monotonic()
        problem = run_python(block, path, names) if block.language == "python" else run_console(block)
        print(f"{path.name}:{block.line} {time.monotonic() - began:.1f} s", flush=True)
        if problem:
            print(f"{path.name}:{block.line}: {problem}", flush=True)
            # Threads of a client left open must not hold the interpreter back.
            os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
