"""What a way of running RocketMQ must be able to do; `jvm` and `containers` are such ways."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

TAIL_LINES: Final = 30
STOP_SECONDS: Final = 60.0  # a 5.5.0 broker needs 17 on a quiet machine


class Server(ABC):
    """One name server or broker, running or not; its data stays until its backend closes."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The process on this machine, None while it is not running."""

    @abstractmethod
    def start(self) -> None:
        """Start it on its old port and data, without waiting until it is ready."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once, as kill -9 does; return when it has ended."""

    @abstractmethod
    def stop(self) -> None:
        """Let it shut down in order; kill it if that takes too long."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze it: its connections stay open and it answers nothing."""

    @abstractmethod
    def resume(self) -> None: ...

    @abstractmethod
    def log_tail(self) -> str:
        """Return the last lines it printed."""

    @property
    def running(self) -> bool:
        return self.pid is not None


class Launched(NamedTuple):
    """A server and the address under which this machine reaches it."""

    name: str
    address: str
    server: Server


class Backend(ABC):
    """A way of running the servers of one cluster."""

    name: str

    @abstractmethod
    def namesrv(self, name: str) -> Launched:
        """Start a name server. All name servers come before the first broker."""

    @abstractmethod
    def broker(self, name: str, changes: Mapping[str, str]) -> Launched:
        """Start a master that registers with all name servers started so far."""

    @abstractmethod
    def mqadmin(self, arguments: Sequence[str]) -> str:
        """Run RocketMQ's admin tool and return what it printed."""

    @abstractmethod
    def save_logs(self, folder: Path) -> None:
        """Copy what the servers logged to *folder*."""

    @abstractmethod
    def close(self) -> None:
        """Kill everything and remove all data. May be called again."""


def tail(path: Path) -> str:
    """Return the last lines of a log that may not exist yet."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "\n".join(lines[-TAIL_LINES:])


def head(path: Path) -> str:
    """Return the first lines of a report."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[:TAIL_LINES])


def copy_logs(source: Path, folder: Path) -> None:
    # A server may still rotate its files: what disappears meanwhile is not missed.
    shutil.copytree(
        source, folder, dirs_exist_ok=True, ignore_dangling_symlinks=True, symlinks=True
    )
