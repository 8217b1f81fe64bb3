"""CPU time and memory of other processes, and calibration of the machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from itertools import repeat
from pathlib import Path
from typing import Final

from rocketmq_aio.__main__ import interpreter_build

TICKS: Final = os.sysconf("SC_CLK_TCK")
STEADY: Final = 1.3  # largest ratio of a calibration to the fastest one
CALIBRATION_LOOPS: Final = 3000
MEASURED_TEXT: Final = (
    "KEYS\x01order-1234567\x02WAIT\x01true\x02TAGS\x01TagA\x02traceId\x014bf9\x02"
)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process; 0 if it has ended."""
    try:
        # The CPU clock of the process, in nanoseconds; /proc counts in 10 ms.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return 0.0


def busy_seconds() -> float:
    """Return the CPU time of all processors since boot."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()
    user, nice, system, _, _, interrupt, soft_interrupt = map(int, fields[1:8])
    return (user + nice + system + interrupt + soft_interrupt) / TICKS


def memory_mib(pid: int, name: str = "VmHWM") -> float:
    """Return a memory figure of a process: VmHWM is the peak, VmRSS the current size."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0.0
    for line in status.splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def folder_bytes(folder: Path) -> int:
    """Return the disk use of the files in *folder*."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


class Steadiness:
    """Detects slow phases of a shared machine by timing a fixed loop."""

    def __init__(self) -> None:
        self._best = min(_calibrate() for _ in range(20))

    def holds(self) -> bool:
        now = min(_calibrate() for _ in range(3))
        self._best = min(self._best, now)
        return now <= self._best * STEADY


def _calibrate() -> int:
    started = time.thread_time_ns()
    for _ in repeat(None, CALIBRATION_LOOPS // 10):
        _ = {
            name: value
            for name, _, value in (pair.partition("\x01") for pair in MEASURED_TEXT.split("\x02"))
        }
    return time.thread_time_ns() - started


def distribution_interpreter() -> Path | None:
    """Return the distribution's interpreter of this version; None if it is missing or this one."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = shutil.which(name, path="/usr/bin")
    if path is None or Path(path).resolve() == Path(sys.executable).resolve():
        return None
    return Path(path)


def describe() -> dict[str, str | int]:
    """Return the description of this machine for reports."""
    models = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cpus": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        "python_compiler": platform.python_compiler(),
        "python_build": interpreter_build(),
        "distribution_python": str(distribution_interpreter() or "none"),
        "implementation": sys.implementation.name,
    }
