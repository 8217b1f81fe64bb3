"""Guard process: runs one server and kills it when the owner process ends.

Runs as a script, with the standard library only, between a test run and a JVM:

    python guard.py OWNER_PID FOLDER LOG COMMAND...

It prints the pid of COMMAND, then reads standard input: each line is a signal number to
forward.  When the owner has ended, for whatever reason, it kills the server and removes FOLDER,
which servers share: the guard that is the last to remove it finds no server that writes to it.
On Linux the kernel kills the server if the guard itself is killed.  The owner cannot request
this death signal itself: the signal is bound to the thread that forked, and a test run may
start servers from a thread that ends.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
OWNER_CHECK_SECONDS: Final = 1.0  # only for an owner whose fork still holds our standard input


def main(arguments: Sequence[str]) -> int:
    owner, folder, log, *command = arguments
    awake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    server = start_server(command, Path(log))
    try:
        sys.stdout.write(f"{server.pid}\n")
        sys.stdout.flush()
        orphaned = serve(server, int(owner), awake)
    finally:
        server.kill()
        server.wait()
    if orphaned:
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode


def start_server(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=death_signal(),
        )


def death_signal() -> Callable[[], None] | None:
    """Return a function that requests SIGKILL for the server when its guard dies (Linux)."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(server: subprocess.Popen[bytes], owner: int, awake: int) -> bool:
    """Forward signals until the server ends (False) or its owner has ended (True)."""
    while server.poll() is None:
        ready, _, _ = select.select([0, awake], [], [], OWNER_CHECK_SECONDS)
        if awake in ready:
            os.read(awake, 4096)
        if 0 in ready:
            wanted = os.read(0, 4096)
            if not wanted:
                return True
            for number in wanted.split():
                server.send_signal(int(number))
        elif os.getppid() != owner:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
