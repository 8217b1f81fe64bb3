"""GuardedProcess: a child process that is killed when this process ends."""

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
from rocketmq_aio.testing.errors import ClusterError, StartError

KILL_SECONDS: Final = 10.0  # a killed process that still exists then hangs in the kernel


class GuardedProcess:
    """A command that runs under a `guard`, in *folder*.

    :param remove: the folder that the guard removes if this process ends first; default: *folder*
    """

    def __init__(
        self, command: Sequence[str], *, folder: Path, log: Path, remove: Path | None = None
    ) -> None:
        owner = [str(os.getpid()), str(remove or folder), str(log)]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *owner, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,  # a JVM writes its crash report here
            start_new_session=True,  # Ctrl-C reaches only this process, which stops the servers
        )
        self.pid = 0  # until it is known
        try:
            self.pid = self._read_pid(command[0])
        except BaseException:
            self._close()
            raise

    @property
    def running(self) -> bool:
        return self._guard.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send *number* through the guard, which cannot signal a recycled pid."""
        assert self._guard.stdin is not None
        if self._guard.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # it has exited
            self._guard.stdin.write(b"%d\n" % number)
            self._guard.stdin.flush()

    def wait(self, seconds: float) -> bool:
        """Return whether the process ended within *seconds*."""
        try:
            self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self._close()
        return True

    def kill(self) -> None:
        """Kill the process and wait for its end.

        :raises ClusterError: it does not end
        """
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
        try:
            self._guard.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            reason = f"process {self.pid} has not ended {KILL_SECONDS:g} s after SIGKILL"
            raise ClusterError(reason) from None
