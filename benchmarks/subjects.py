"""Subjects by name, and their commands for a workload."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sysconfig import get_path
from typing import Final

from benchmarks import machine
from benchmarks.workloads import Workload

JAVA: Final = "java"
PYTHON: Final = ("asyncio", "uvloop")
# The same loops in the interpreter of the distribution, which builds it with profile-guided
# optimization.
DISTRIBUTION: Final = ("distribution-asyncio", "distribution-uvloop")
BARE: Final = "bare"
ALL: Final = (JAVA, *PYTHON, *DISTRIBUTION, BARE)
JAVA_TASKS: Final = {"iterate": "drain"}  # the Java client has no iteration
# A fixed heap, so that its growth is not part of the measurement.
JAVA_HEAP: Final = ("-Xms256m", "-Xmx256m")
MAVEN: Final = ("mvn", "-q", "-B", "-Dstyle.color=never", "dependency:copy-dependencies")
MAVEN_SECONDS: Final = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A workload with the arguments of a subject."""

    workload: Workload
    namesrv: str
    warmup_seconds: float
    seconds: float
    total: int

    def settings(self) -> dict[str, str]:
        return {
            "namesrv": self.namesrv,
            "topic": self.workload.topic,
            "in_flight": str(self.workload.in_flight),
            "batch": str(self.workload.batch),
            "body_bytes": str(self.workload.body_bytes),
            "pull_batch": str(self.workload.pull_batch),
            "handler_batch": str(self.workload.handler_batch),
            "rate": str(self.workload.rate),
            "warmup_seconds": str(self.warmup_seconds),
            "seconds": str(self.seconds),
            "total": str(self.total),
        }


Command = Callable[[Order], list[str]]


def default() -> tuple[str, ...]:
    """Return the subjects of a run that names none."""
    return (JAVA, *PYTHON, *(DISTRIBUTION if machine.distribution_interpreter() else ()))


def python_command(
    order: Order, *, loop: str, kind: str = "client", python: Sequence[str] = (sys.executable,)
) -> list[str]:
    """Return the command of a Python subject; a cold start runs without the measuring loops."""
    workload = order.workload
    if workload.kind == "import":
        return [*python, "-m", "benchmarks.subject.importing"]
    if workload.kind == "first":
        cold = [*python, "-m", "benchmarks.subject.cold", workload.task]
        return [*cold, order.namesrv, workload.topic, loop]
    command = [*python, "-m", "benchmarks.subject", kind, workload.task, "--loop", loop]
    for name, value in order.settings().items():
        command += ["--" + name.replace("_", "-"), value]
    return command


class JavaClient:
    """The official client: its jars from Maven, the program compiled into a folder."""

    def __init__(self, version: str, folder: Path) -> None:
        self._folder = folder
        source = Path(__file__).parent / "java"
        self._classes = f"{self._copy_jars(source, version)}/*:{folder}"
        subprocess.run(
            [
                _program("javac"),
                "-cp",
                self._classes,
                "-d",
                str(folder),
                *(str(file) for file in source.glob("*.java")),
            ],
            check=True,
        )

    def command(self, order: Order) -> list[str]:
        task = JAVA_TASKS.get(order.workload.task, order.workload.task)
        return [
            _program("java"),
            *JAVA_HEAP,
            "-Drocketmq.client.logUseSlf4j=false",
            f"-Drocketmq.client.logRoot={self._folder}",
            f"-Duser.home={self._folder}",
            "-cp",
            self._classes,
            "Bench",
            task,
            *(f"{name}={value}" for name, value in order.settings().items()),
        ]

    def _copy_jars(self, source: Path, version: str) -> Path:
        jars = _cache() / f"client-{version}"
        if not jars.is_dir():
            part = self._folder / "jars"
            subprocess.run(
                [_program(MAVEN[0]), *MAVEN[1:], "-f", str(source / "pom.xml"),
                 f"-Drocketmq.version={version}", f"-DoutputDirectory={part}"],
                check=True, timeout=MAVEN_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            jars.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(part, jars)
        return jars


def _cache() -> Path:
    chosen = os.environ.get("ROCKETMQ_AIO_CACHE")
    parent = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "rocketmq_aio"
    return parent / "jars"


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(
            f"{name} not found: install a JDK 17 and Maven"
            " (Debian: apt-get install openjdk-17-jdk-headless maven)"
        )
    return path


def commands(names: list[str], version: str, folder: Path) -> dict[str, Command]:
    """Return the commands of the subjects in *names*.

    :raises ValueError: a name is unknown; the message lists the known ones
    """
    if unknown := set(names) - set(ALL):
        raise ValueError(f"unknown subject {', '.join(sorted(unknown))}; known: {', '.join(ALL)}")
    table: dict[str, Command] = {}
    for name in names:
        if name == JAVA:
            table[name] = JavaClient(version, folder).command
        elif name == BARE:
            table[name] = partial(python_command, loop="asyncio", kind="bare")
        else:
            loop = name.rpartition("-")[2]
            python = _distribution() if name in DISTRIBUTION else [sys.executable]
            table[name] = partial(python_command, loop=loop, python=python)
    return table


def _distribution() -> list[str]:
    """Return the command of the distribution's interpreter, with the packages of this one."""
    interpreter = machine.distribution_interpreter()
    if interpreter is None:
        raise ValueError("the distribution has no other interpreter of this version")
    folders = [str(Path.cwd()), get_path("purelib"), get_path("platlib")]
    return ["env", f"PYTHONPATH={os.pathsep.join(dict.fromkeys(folders))}", str(interpreter)]
