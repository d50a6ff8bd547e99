"""What tests ask of processes holds for those that end meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from tests.ending_processes import command_lines, is_gone, kill


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_process_that_has_ended_is_gone_and_has_no_command(is_reaped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        process, own = psutil.Process(started.pid), psutil.Process()
        assert not is_gone(process)
        assert set(command_lines([process, own])) == {process, own}
        kill(process)
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        if is_reaped:
            started.wait()
        assert is_gone(process)
        assert set(command_lines([process, own])) == {own}
        kill(process)
