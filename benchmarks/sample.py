"""One sample of a subject: start it, measure it at its output lines, return the figures."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import machine

Figures = dict[str, float]
MAX_OTHER_CORES: Final = 0.3  # load of other processes above which a sample is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Figures of one run; not *clean* if other processes were busy."""

    workload: str
    subject: str
    round_number: int
    clean: bool
    figures: Figures


class SubjectError(RuntimeError):
    """A subject ended without a result; the message has its stderr."""


@dataclass(frozen=True, slots=True)
class _Moment:
    at: float
    client: float
    brokers: float
    machine: float

    @classmethod
    def now(cls, client: int, brokers: Sequence[int]) -> _Moment:
        busy = sum(machine.cpu_seconds(pid) for pid in brokers)
        return cls(time.perf_counter(), machine.cpu_seconds(client), busy, machine.busy_seconds())


def run(
    command: Sequence[str],
    *,
    brokers: Sequence[int] = (),
    timeout_seconds: float,
    cpu: int | None = None,
    folder: Path | None = None,
) -> Figures:
    """Run *command* to its end and return its figures.

    *brokers* are the processes whose CPU time is reported as the broker's; *cpu* pins the subject.
    It runs in *folder*, by default the current one.

    :raises SubjectError: it failed, printed no result, or did not end in *timeout_seconds*
    """
    started = _Moment.now(0, brokers)
    pinned = ["taskset", "-c", str(cpu), *command] if cpu is not None else command
    process = subprocess.Popen(
        pinned,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(),
        cwd=folder,
    )
    errors: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda pipe=process.stderr: errors.append(pipe.read()))
    killer = threading.Timer(timeout_seconds, process.kill)
    reader.start()
    killer.start()
    try:
        figures = _follow(process, brokers, started)
    finally:
        killer.cancel()
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()  # type: ignore[union-attr]
    if figures is None:
        raise SubjectError(f"{' '.join(command)}\n{''.join(errors)[-3000:]}")
    return figures


def _environment() -> dict[str, str]:
    # An installed package has its bytecode: without it a start would compile the sources.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONUNBUFFERED": "1", "JAVA_TOOL_OPTIONS": ""}


def _follow(
    process: subprocess.Popen[str], brokers: Sequence[int], started: _Moment
) -> Figures | None:
    opened = closed = started
    assert process.stdout is not None
    for line in process.stdout:
        word, _, rest = line.strip().partition(" ")
        if word == "START":
            opened = _Moment.now(process.pid, brokers)
        elif word == "STOP":
            closed = _Moment.now(process.pid, brokers)
        elif word == "FIRST":
            figures = _cold_start(process.pid, started, brokers)
            return figures | ({"first_seconds": float(rest)} if rest else {})
        elif word == "RESULT":
            process.wait()
            return _rates(json.loads(rest), opened, closed)
    return None


def _cold_start(pid: int, started: _Moment, brokers: Sequence[int]) -> Figures:
    now = _Moment.now(pid, brokers)
    return {
        "first_seconds": now.at - started.at,
        "client_cpu_seconds": now.client,
        "rss_mib": machine.memory_mib(pid),
        "other_cores": _other_cores(started, now),
    }


def _rates(result: Figures, opened: _Moment, closed: _Moment) -> Figures:
    """Compute rates per second and message; the subject reports its own CPU time."""
    seconds, client = result["seconds"], result["cpu_seconds"]
    broker = (closed.brokers - opened.brokers) / max(closed.at - opened.at, 1e-9)
    figures = result | {
        "client_cores": client / seconds,
        "broker_cores": broker,
        "other_cores": _other_cores(opened, closed),
    }
    if messages := result.get("messages"):
        figures["rate"] = messages / seconds
        figures["client_cpu_us"] = client / messages * 1e6
        if broker:
            figures["broker_cpu_us"] = broker * seconds / messages * 1e6
    return figures


def _other_cores(opened: _Moment, closed: _Moment) -> float:
    known = closed.client - opened.client + closed.brokers - opened.brokers
    return (closed.machine - opened.machine - known) / max(closed.at - opened.at, 1e-9)
