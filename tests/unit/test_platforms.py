"""Windows and macOS, simulated on other platforms."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from rocketmq_aio.consumer.offsets import local_file
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.testing import containers
from rocketmq_aio.testing.errors import UnavailableError
from rocketmq_aio.testing.jars import fetch_jars
from rocketmq_aio.testing.jvm import JVMBackend
from tests.unit import windows
from tests.unit.consumer.parts import queue
from tests.unit.remoting.wire import Wire

# Third-party modules are imported before the platform changes.
IMPORT_ALL: Final = """
import importlib, pkgutil, sys
import pytest
import pyspark_rocketmq, rocketmq_aio
from tests.unit import windows

def names():
    for package in (rocketmq_aio, pyspark_rocketmq):
        for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not each.name.endswith("__main__"):
                yield each.name

ours = list(names())
for name in ours:
    importlib.import_module(name)
for name in [*sys.modules]:
    if name.startswith(("rocketmq_aio", "pyspark_rocketmq")):
        del sys.modules[name]
windows.pretend(pytest.MonkeyPatch())
failed = {}
for name in ours:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = repr(error)
print(len(ours) > 100, failed)
"""


def test_every_module_can_be_imported_on_windows() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, check=False, text=True
    )

    assert done.stdout.strip() == "True {}", done.stderr


# --- offset files --------------------------------------------------------------------------------


def test_an_offset_file_is_locked_on_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    msvcrt = windows.pretend(monkeypatch)
    module = windows.copy_of(local_file, monkeypatch)
    first, second = (module.OffsetFile(tmp_path, "web-1", "g", module.Disk()) for _ in range(2))
    first.open()
    try:
        with pytest.raises(ConfigError, match="instance_name"):
            second.open()
    finally:
        first.close()
    msvcrt.held.clear()  # closing the file unlocks it

    assert second.open() == ({}, [])
    second.close()


def test_offsets_are_kept_on_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    msvcrt = windows.pretend(monkeypatch)
    module = windows.copy_of(local_file, monkeypatch)
    for offset in (5, 6):  # written, then replaced
        file = module.OffsetFile(tmp_path, "web-1", "g", module.Disk())
        file.open()
        file.replace({queue(0): offset})
        file.close()
        msvcrt.held.clear()

    assert file.open() == ({queue(0): 6}, [])
    file.close()


# --- sockets -------------------------------------------------------------------------------------

MACOS_KEEPALIVE: Final = 0x10


class Options:
    """A socket that records its options and rejects *refused*."""

    family = socket.AF_INET

    def __init__(self, *refused: int) -> None:
        self.set: dict[tuple[int, int], int] = {}
        self.refused = refused

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if option in self.refused:
            raise OSError(22, "Invalid argument")
        self.set[level, option] = value


async def made_on(sock: Options, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Open and close a connection over *sock*."""
    async with Wire() as wire:
        monkeypatch.setattr(wire.transport, "get_extra_info", lambda *_: sock, raising=False)
        wire.connection.connection_made(wire.transport)
        assert wire.connection.usable
        monkeypatch.undo()
    return sock


async def test_a_dead_peer_is_detected_after_six_seconds_without_data(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sock = await made_on(Options(), monkeypatch)

    assert sock.set[socket.SOL_SOCKET, socket.SO_KEEPALIVE] == 1
    assert sock.set[socket.IPPROTO_TCP, socket.TCP_KEEPIDLE] == 6


async def test_dead_peer_detection_uses_the_macos_option_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(socket, "TCP_KEEPIDLE")
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", MACOS_KEEPALIVE, raising=False)
    sock = await made_on(Options(), monkeypatch)

    assert sock.set[socket.IPPROTO_TCP, MACOS_KEEPALIVE] == 6


@pytest.mark.parametrize("refused", ["TCP_NODELAY", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"])
async def test_a_rejected_socket_option_does_not_fail_the_connection(
    refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sock = await made_on(Options(getattr(socket, refused)), monkeypatch)

    assert (socket.IPPROTO_TCP, socket.TCP_KEEPCNT) in sock.set


# --- test servers --------------------------------------------------------------------------------


def test_unix_sockets_are_not_tried_for_an_engine_on_windows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(FileNotFoundError):
        containers._check_engine()
    windows.pretend(monkeypatch)

    containers._check_engine()  # the client finds the pipe by itself


def test_the_java_backend_raises_on_windows_and_names_the_alternative(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ROCKETMQ_AIO_CACHE", str(tmp_path))
    windows.pretend(monkeypatch)

    with pytest.raises(UnavailableError, match="use containers"):
        JVMBackend("5.5.0")
    with pytest.raises(UnavailableError, match="use containers"):
        fetch_jars("5.5.0")
