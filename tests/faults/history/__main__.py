"""`python -m tests.faults.history DIRECTORY` judges a recorded run again; exit code 1 for violations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.faults.history.checker import judge


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.history", description=__doc__)
    parser.add_argument("directory", type=Path, help="the journals of a run")
    parser.add_argument("--clock-error-ms", type=int, default=0, help="how far clocks were set forward")
    arguments = parser.parse_args()
    try:
        verdict = judge(arguments.directory, arguments.clock_error_ms)
    except FileNotFoundError as error:
        parser.error(str(error))
    print(verdict)
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
