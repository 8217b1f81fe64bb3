"""Ceiling benchmark: the client and a bare prototype against the C stand-in, interleaved."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import sample, standin
from benchmarks.machine import Steadiness
from benchmarks.sample import Figures, Sample, SubjectError

GRACE_SECONDS: Final = 30.0
PROTOTYPE_SEND_PORT: Final = 19884  # fixed in that program
PROTOTYPE_RATE: Final = 100_000  # about, in sends per second: its argument is a number, not a time
CLIENT: Final = "client"
BARE: Final = "bare"
PROTOTYPE: Final = "prototype"
AGAINST: Final = "against"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path of the client, and the arguments of the external prototypes for it.

    *prototype* is the argument of the one that sends; *level* that of the one that pulls.
    *bare_task* is what the bare prototype does, if that is another task.
    """

    name: str
    title: str
    task: str
    bare_task: str = ""
    in_flight: int = 1
    batch: int = 1
    body_bytes: int = 256
    pull_batch: int = standin.PULL_MESSAGES
    prototype: str = ""
    level: str = "dispatch"
    per_second: int = PROTOTYPE_RATE


ALL: Final = (
    Route(name="send-64", title="send 256 B, 64 in flight", task="send", in_flight=64,
          prototype="proto"),
    Route(name="send-1", title="send 256 B, 1 in flight", task="send", prototype="proto",
          per_second=10_000),
    Route(name="batch-32x16", title="batches of 32, 16 in flight", task="send", in_flight=16,
          batch=32, prototype="batch32", per_second=15_000),
    Route(name="send-1024-100b", title="send 100 B, 1 024 in flight", task="send", in_flight=1024,
          body_bytes=100),
    Route(name="gather-1024-100b", title="the same with auto_batch; bare: single sends",
          task="send-gathered", bare_task="send", in_flight=1024, body_bytes=100),
    Route(name="nowait-4x256-100b", title="the same by send_nowait; bare: single sends",
          task="send-nowait", bare_task="send", in_flight=4, batch=256, body_bytes=100),
    Route(name="send-1024-1k", title="send 1 KiB, 1 024 in flight", task="send", in_flight=1024,
          body_bytes=1024),
    Route(name="gather-1024-1k", title="the same with auto_batch; bare: single sends",
          task="send-gathered", bare_task="send", in_flight=1024, body_bytes=1024),
    Route(name="transaction-64", title="transactions of 1 KiB, 64 in flight; bare: single sends",
          task="transaction", bare_task="send", in_flight=64, body_bytes=1024),
    Route(name="pull-1k", title="pull 1 KiB, 16 queues", task="pull", body_bytes=1024),
    Route(name="handle-1k", title="1 KiB to push handlers, dispatched and settled", task="push",
          body_bytes=1024),
    Route(name="handle-tuned-1k", title="the same, 1 024 a pull", task="push", body_bytes=1024,
          pull_batch=1024),
    Route(name="handle-read-1k", title="to push handlers that read tags and properties",
          task="push-read", body_bytes=1024, level="props"),
)  # fmt: skip


def select(names: str) -> list[Route]:
    """Return the routes of a comma-separated list, all of them for "all".

    :raises ValueError: a name is unknown; the message lists the known ones
    """
    known = {route.name: route for route in ALL}
    wanted = list(known) if names == "all" else names.split(",")
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"unknown route {', '.join(unknown)}; known: {', '.join(known)}")
    return [known[name] for name in wanted]


def command(route: Route, subject: str, address: str, loop: str, seconds: float) -> list[str]:
    """Return the command of the client or the bare prototype on *route*."""
    task, in_flight, batch = route.task, route.in_flight, route.batch
    if subject == BARE and route.bare_task:
        task, in_flight, batch = route.bare_task, in_flight * batch, 1
    return [
        sys.executable, "-m", "benchmarks.subject", subject, task,
        "--loop", loop, "--namesrv", address, "--topic", standin.TOPIC,
        "--in-flight", str(in_flight), "--batch", str(batch),
        "--body-bytes", str(route.body_bytes), "--pull-batch", str(route.pull_batch),
        "--rich", "--seconds", str(seconds),
    ]  # fmt: skip


@dataclass(slots=True)
class Ceiling:
    """Interleaved rounds of every subject on every route; *report* receives each sample.

    *against* is another checkout, whose client is measured, too.
    """

    report: Callable[[Sample], None]
    routes: list[Route]
    rounds: int = 7
    tries: int = 4
    seconds: float = 1.5
    loop: str = "asyncio"
    prototypes: Path | None = None
    against: Path | None = None
    mirror_encoding: bool = False
    samples: list[Sample] = field(default_factory=list)
    _cpus: tuple[int | None, int | None] = (None, None)
    _steadiness: Steadiness = field(default_factory=Steadiness)

    def run(self) -> list[Sample]:
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) > 1:
            self._cpus = allowed[0], allowed[1]
            os.sched_setaffinity(0, {allowed[0]})  # calibrate on the processor of the subjects
        try:
            with tempfile.TemporaryDirectory() as folder:
                program = standin.build(Path(folder))
                for route in self.routes:
                    self._measure(route, program)
        finally:
            os.sched_setaffinity(0, allowed)
        return self.samples

    def _measure(self, route: Route, program: Path) -> None:
        names = [CLIENT, BARE]
        names += [PROTOTYPE] if self.prototypes else []
        names += [AGAINST] if self.against else []
        sending_prototype = self.prototypes is not None and bool(route.prototype)
        with standin.running(
            program,
            body_bytes=route.body_bytes,
            port=PROTOTYPE_SEND_PORT if sending_prototype else 0,
            cpu=self._cpus[1],
            mirror_encoding=self.mirror_encoding,
            messages=route.pull_batch,
        ) as address:
            for number in range(self.rounds):
                for name in random.sample(names, len(names)):
                    self._keep(self._steady_sample(route, name, number, address))

    def _keep(self, taken: Sample) -> None:
        self.samples.append(taken)
        self.report(taken)

    def _steady_sample(self, route: Route, name: str, number: int, address: str) -> Sample:
        """Repeat a sample until the machine was fast before and after it, or tries run out."""
        for tries_left in reversed(range(self.tries)):
            steady = self._steadiness.holds()
            figures = self._take(route, name, address)
            steady = self._steadiness.holds() and steady
            if steady or not tries_left:
                return Sample(
                    workload=route.name,
                    subject=name,
                    round_number=number,
                    clean=steady,
                    figures=figures,
                )
        raise ValueError("no try at all")

    def _take(self, route: Route, name: str, address: str) -> Figures:
        if name == PROTOTYPE:
            return self._run_prototype(route, address)
        subject, folder = (CLIENT, self.against) if name == AGAINST else (name, None)
        return sample.run(
            command(route, subject, address, self.loop, self.seconds),
            timeout_seconds=GRACE_SECONDS + self.seconds,
            cpu=self._cpus[0],
            folder=folder,
        )

    def _run_prototype(self, route: Route, address: str) -> Figures:
        """Run an external prototype, which prints its figures as JSON."""
        assert self.prototypes is not None
        sends = str(int(route.per_second * self.seconds))
        if route.prototype:
            program = "bench_send_e2e.py"
            arguments = [route.prototype, self.loop, str(route.in_flight), sends]
        else:
            program = "bench_pull.py"
            arguments = ["CopyChunks", route.level, self.loop, "16"]
            arguments += ["--port", address.rpartition(":")[2], "--seconds", str(self.seconds)]
        words = [sys.executable, str(self.prototypes / program), "--client", *arguments]
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=GRACE_SECONDS * 4,
            env={**os.environ, "BENCH_CPU": str(self._cpus[0] or 0)},
        )  # fmt: skip
        if done.returncode:
            raise SubjectError(f"{' '.join(words)}\n{done.stderr[-3000:]}")
        printed = json.loads(done.stdout.splitlines()[-1])
        known = {
            "msgs_s": "rate",
            "cpu_us_msg": "client_cpu_us",
            "p50_us": "p50_us",
            "p99_us": "p99_us",
        }
        return {ours: printed[theirs] for theirs, ours in known.items() if theirs in printed}
