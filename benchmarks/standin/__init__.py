"""The C stand-in broker: built when needed, run in a process of its own."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from zlib import crc32

SOURCES: Final = ("standin.c", "broker.c", "header.c")
PULL_MESSAGES: Final = 32
TOPIC: Final = "bench_topic"
# total magic crc queue flag offset position sysflag born-ms host port stored-ms host port times
# prepared body-length
_FIXED: Final = struct.Struct(">iIiiiqqiq4siq4siiqi")
_MAGIC: Final = 0xDAA320A7
_LOOPBACK: Final = b"\x7f\0\0\1"
_BORN_MS: Final = 1_763_668_800_123


def build(folder: Path) -> Path:
    """Compile the stand-in into *folder* and return the program."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler: install one (Debian: apt-get install gcc)")
    program = folder / "standin"
    here = Path(__file__).parent
    sources = [str(here / name) for name in SOURCES]
    subprocess.run([compiler, "-O2", "-o", str(program), *sources], check=True)
    return program


def stored_messages(count: int, body_bytes: int, *, topic: str = TOPIC) -> bytes:
    """Return what a pull answer holds: *count* messages as a broker stores them."""
    return b"".join(_stored_message(number, body_bytes, topic.encode()) for number in range(count))


def _stored_message(number: int, body_bytes: int, topic: bytes) -> bytes:
    body = bytes(97 + (number * 31 + place * 7) % 26 for place in range(body_bytes))
    properties = (
        f"KEYS\x01order-{number:07d}\x02UNIQ_KEY\x017F0000010D2C18B4AAC27B5E2A3D{number:04X}\x02"
        "WAIT\x01true\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster\x02"
    ).encode()
    total = _FIXED.size + len(body) + 1 + len(topic) + 2 + len(properties)
    fixed = _FIXED.pack(
        total, _MAGIC, crc32(body) & 0x7FFFFFFF, 0, 0, number, number * total, 0, _BORN_MS,
        _LOOPBACK, 50000, _BORN_MS + 2, _LOOPBACK, 10911, 0, 0, len(body),
    )  # fmt: skip
    parts = (fixed, body, bytes((len(topic),)), topic, struct.pack(">H", len(properties)))
    return b"".join((*parts, properties))


@contextmanager
def running(
    program: Path,
    *,
    body_bytes: int = 1024,
    queues: int = 16,
    port: int = 0,
    cpu: int | None = None,
    mirror_encoding: bool = False,
    messages: int = PULL_MESSAGES,
) -> Iterator[str]:
    """Run the stand-in for the body of the ``with`` and yield its address.

    *cpu* pins it; *mirror_encoding* makes it answer in the encoding of the request, as 4.9 does.
    A pull brings *messages* at most.
    """
    stored = program.with_name(f"messages-{messages}-{body_bytes}")
    stored.write_bytes(stored_messages(messages, body_bytes))
    command = [str(program), str(port), str(stored), "-q", str(queues)]
    with subprocess.Popen(
        command + ["-s"] * mirror_encoding, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if cpu is not None:
                os.sched_setaffinity(process.pid, {cpu})
            yield f"127.0.0.1:{_ready_port(process)}"
        finally:
            process.terminate()


def _ready_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    word, _, port = process.stdout.readline().partition(" ")
    if word != "ready":
        raise RuntimeError(f"the stand-in did not start, exit status {process.wait()}")
    return int(port)
