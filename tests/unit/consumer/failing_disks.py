"""Disks that lose power, fill up or hang at a given step."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from threading import Event
from typing import TypeAlias

from rocketmq_aio.consumer.offsets.local_file import Disk


class PowerLostError(BaseException):
    """The machine stops here: nothing may catch it."""


@dataclass(eq=False)
class File:
    content: bytes = b""
    synced: bool = False


Names: TypeAlias = dict[str, File]
Change: TypeAlias = tuple[str, File | None]  # this name now means that file, or none


class MemoryDisk(Disk):
    """Files in memory; a power cut may lose unsynced data, completely or in part."""

    def __init__(self, names: Names | None = None, *, steps: int | None = None) -> None:
        self._names = dict(names or {})
        self._durable = dict(self._names)
        self._unsynced: list[list[Change]] = []
        self._steps = steps

    def _step(self) -> None:
        if self._steps is not None:
            if self._steps == 0:
                raise PowerLostError
            self._steps -= 1

    def _change(self, *changes: Change) -> None:
        self._step()
        self._unsynced.append(list(changes))
        _apply(self._names, changes)

    def make_folder(self, folder: Path) -> None:
        pass

    def lock(self, path: Path) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    def read(self, path: Path) -> bytes | None:
        file = self._names.get(path.name)
        return None if file is None else file.content

    def write(self, path: Path, content: bytes) -> None:
        file = File()
        self._change((path.name, None))
        self._change((path.name, file))
        for end in (len(content) // 2, len(content)):
            self._step()
            file.content = content[:end]
        self._step()
        file.synced = True

    def rename(self, source: Path, target: Path) -> None:
        file = self._names.get(source.name)
        if file is None:
            raise FileNotFoundError(source)
        self._change((source.name, None), (target.name, file))

    def sync_folder(self, folder: Path) -> None:
        self._step()
        self._durable = dict(self._names)
        self._unsynced.clear()

    def after_power_loss(self) -> Iterator[MemoryDisk]:
        """Every disk that may be found: any of the unsynced changes, any part of a content."""
        for count in range(len(self._unsynced) + 1):
            for kept in combinations(self._unsynced, count):
                names = dict(self._durable)
                for changes in kept:
                    _apply(names, changes)
                yield from _with_any_content(names)


def _apply(names: Names, changes: tuple[Change, ...] | list[Change]) -> None:
    for name, file in changes:
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _with_any_content(names: Names) -> Iterator[MemoryDisk]:
    choices = [
        [file.content]
        if file.synced
        else [b"", file.content[: len(file.content) // 2], file.content]
        for file in names.values()
    ]
    for contents in product(*choices):
        yield MemoryDisk(
            {name: File(each, True) for name, each in zip(names, contents, strict=True)}
        )


class FullDisk(Disk):
    """A real disk on which one step fails, once, with an error of the system."""

    STEPS = ("write", "rename to backup", "rename into place", "sync folder")

    def __init__(self) -> None:
        self.failing: str | None = None
        self.code = errno.ENOSPC

    def _fail(self, step: str, path: Path) -> None:
        if self.failing == step:
            self.failing = None
            raise OSError(self.code, os.strerror(self.code), str(path))

    def write(self, path: Path, content: bytes) -> None:
        if self.failing == "write":
            super().write(path, content[:20])
        self._fail("write", path)
        super().write(path, content)

    def rename(self, source: Path, target: Path) -> None:
        self._fail("rename to backup" if target.suffix == ".bak" else "rename into place", target)
        super().rename(source, target)

    def sync_folder(self, folder: Path) -> None:
        self._fail("sync folder", folder)
        super().sync_folder(folder)


class HangingDisk(Disk):
    """A real disk whose next write, or next lock, waits until the test releases it."""

    def __init__(self) -> None:
        self.reached = Event()
        self.released = Event()
        self.released.set()

    def hang(self) -> None:
        self.reached.clear()
        self.released.clear()

    def _wait(self) -> None:
        self.reached.set()
        assert self.released.wait(20)

    def write(self, path: Path, content: bytes) -> None:
        self._wait()
        super().write(path, content)

    def lock(self, path: Path) -> int:
        self._wait()
        return super().lock(path)
