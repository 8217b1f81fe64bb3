"""Simulation of Windows for tests on other platforms."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import sys
from types import ModuleType
from typing import Final

import pytest

MODULES: Final = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")
NAMES: Final = {
    os: "O_DIRECTORY O_NOFOLLOW O_NONBLOCK fork getuid killpg register_at_fork setsid uname",
    signal: "SIGCHLD SIGCONT SIGHUP SIGKILL SIGSTOP SIGUSR1 SIGUSR2",
    socket: "AF_UNIX TCP_USER_TIMEOUT",
}


class FakeMsvcrt(ModuleType):
    """Module `msvcrt` with locks that count as held until `held` is cleared."""

    LK_NBLCK: Final = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.held: set[int] = set()  # inodes

    def locking(self, descriptor: int, mode: int, size: int) -> None:
        """Lock the file of *descriptor*; raises the error of Windows."""
        assert (mode, size) == (self.LK_NBLCK, 1)
        inode = os.fstat(descriptor).st_ino
        if inode in self.held:
            raise PermissionError(13, "Permission denied")
        self.held.add(inode)


def pretend(monkeypatch: pytest.MonkeyPatch) -> FakeMsvcrt:
    """Remove what Windows lacks; modules already imported keep their state."""
    msvcrt = FakeMsvcrt()
    monkeypatch.setitem(sys.modules, "msvcrt", msvcrt)
    for module in MODULES:
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails
    for owner, names in NAMES.items():
        for name in names.split():
            monkeypatch.delattr(owner, name, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    return msvcrt


def copy_of(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return *module*, executed again under another name; for use after `pretend`."""
    assert module.__file__ is not None
    name = f"{module.__name__}_on_windows"
    spec = importlib.util.spec_from_file_location(name, module.__file__)
    assert spec is not None
    assert spec.loader is not None
    copied = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, copied)
    spec.loader.exec_module(copied)
    return copied
