"""A child process that cannot outlive this one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocketmq_aio.testing import guard
from rocketmq_aio.testing.errors import StartError

KILL_SECONDS: Final = 10.0  # a killed process that is still there then hangs in the kernel


class GuardedProcess:
    """A command under its guard (see `guard`); *folder* is removed with it if we crash."""

    def __init__(self, command: Sequence[str], *, folder: Path, log: Path) -> None:
        owner = [str(os.getpid()), str(folder), str(log)]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *owner, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,  # where a JVM leaves its crash report
            start_new_session=True,  # Ctrl-C is for us: we stop the servers in order
        )
        try:
            self.pid = self._read_pid(command[0])
        except BaseException:
            self._close()
            raise

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Pass *number* on through the guard, which cannot hit a recycled pid."""
        assert self._guard.stdin is not None
        if self._guard.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # it ended meanwhile
            self._guard.stdin.write(b"%d\n" % number)
            self._guard.stdin.flush()

    def wait(self, seconds: float) -> bool:
        """Tell whether the process ended within *seconds*."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait(KILL_SECONDS)
        self._close()

    def _read_pid(self, program: str) -> int:
        assert self._guard.stdout is not None
        line = self._guard.stdout.readline()
        if not line:
            raise StartError(f"{program} could not be started")
        return int(line)

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._guard.wait(KILL_SECONDS)
