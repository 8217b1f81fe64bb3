"""Interleaved rounds of all subjects against one real broker."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks import sample, subjects
from benchmarks.brokers import MeasuredBroker
from benchmarks.sample import MAX_OTHER_CORES, Figures, Sample, SubjectError
from benchmarks.workloads import Workload

IDLE_SECONDS: Final = 10.0
IDLE_WARMUP_SECONDS: Final = 5.0
FIRST_BACKLOG: Final = 3200
SLOWEST_RATE: Final = 2000  # messages per second: a slower subject is treated as hanging
GRACE_SECONDS: Final = 60.0
WARMING_SECONDS: Final = 10.0  # until the JVM of a broker has compiled the path of a kind of send


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of a run: subjects, workloads and rounds."""

    version: str
    workloads: list[Workload]
    subjects: list[str]
    rounds: int = 5
    tries: int = 2
    seconds: float = 5.0
    warmup_seconds: float = 2.0
    java_warmup_seconds: float = 30.0
    backlog: int = 2_000_000


@dataclass(slots=True)
class Runner:
    """Measures a plan; *report* receives each sample."""

    plan: Plan
    report: Callable[[Sample], None]
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def run(self) -> None:
        plan = self.plan
        with tempfile.TemporaryDirectory() as folder, MeasuredBroker(plan.version) as broker:
            commands = subjects.commands(plan.subjects, plan.version, Path(folder))
            for workload in plan.workloads:
                self._prepare(broker, workload)
                for number in range(plan.rounds):
                    self._round(broker, workload, number, commands)
                    if broker.renew_if_full():
                        self._prepare(broker, workload)

    def _prepare(self, broker: MeasuredBroker, workload: Workload) -> None:
        broker.limit_pulls(workload.pull_batch)
        if workload.kind == "drain":
            broker.fill(workload.topic, total=self.plan.backlog, body_bytes=workload.body_bytes)
        elif workload.kind == "first":
            broker.fill(workload.topic, total=FIRST_BACKLOG, body_bytes=workload.body_bytes)
        else:
            broker.create_topic(workload.topic)
            if workload.kind == "send":
                self._warm(broker, workload)

    def _warm(self, broker: MeasuredBroker, workload: Workload) -> None:
        """Warm up new request kinds on the broker, so that the first subject is not slowed."""
        workload = self._numbered(broker, workload) if workload.own_topics else workload
        order = self._order(broker, workload, subjects.PYTHON[0])
        command = subjects.python_command(order, loop=subjects.PYTHON[0])
        command += ["--warmup-seconds", str(WARMING_SECONDS)]
        sample.run(command, timeout_seconds=GRACE_SECONDS + WARMING_SECONDS)

    def _numbered(self, broker: MeasuredBroker, workload: Workload) -> Workload:
        """Return *workload* with a new topic: Java groups read all of an old one."""
        workload = replace(workload, number=next(self._numbers))
        broker.create_topic(workload.topic)
        return workload

    def _round(
        self,
        broker: MeasuredBroker,
        workload: Workload,
        number: int,
        commands: dict[str, subjects.Command],
    ) -> None:
        names = [name for name in commands if _takes_part(name, workload)]
        for name in random.sample(names, len(names)):
            try:
                taken = self._quiet_sample(broker, workload, name, number, commands[name])
            except SubjectError as error:  # keep the samples of the other subjects
                self.failures.append(f"{workload.name} {name}: {error}")
                print(self.failures[-1], file=sys.stderr)
            else:
                self.samples.append(taken)
                self.report(taken)

    def _quiet_sample(
        self,
        broker: MeasuredBroker,
        workload: Workload,
        subject: str,
        number: int,
        command: subjects.Command,
    ) -> Sample:
        """Take samples until one is clean or the tries are used up; return the last one."""
        for tries_left in reversed(range(self.plan.tries)):
            if workload.own_topics:
                workload = self._numbered(broker, workload)
            order = self._order(broker, workload, subject)
            taken = self._take(broker, order, subject, number, command(order))
            if taken.clean or not tries_left:
                return taken
        raise ValueError("no try at all")

    def _order(self, broker: MeasuredBroker, workload: Workload, subject: str) -> subjects.Order:
        plan = self.plan
        java = subject == subjects.JAVA
        warmup = plan.java_warmup_seconds if java else plan.warmup_seconds
        idle = workload.kind == "idle"
        return subjects.Order(
            workload=workload,
            namesrv=broker.namesrv,
            warmup_seconds=IDLE_WARMUP_SECONDS if idle else warmup,
            seconds=IDLE_SECONDS if idle else plan.seconds,
            total=broker.stored(workload.topic) if workload.kind == "drain" else 0,
        )

    def _take(
        self,
        broker: MeasuredBroker,
        order: subjects.Order,
        subject: str,
        number: int,
        command: list[str],
    ) -> Sample:
        sends = order.workload.kind == "send"
        before = broker.stored(order.workload.topic) if sends else 0
        passes = order.warmup_seconds + order.seconds + 3 * order.total / SLOWEST_RATE
        figures = sample.run(command, brokers=broker.pids, timeout_seconds=GRACE_SECONDS + passes)
        if sends:
            grown = broker.stored(order.workload.topic) - before
            broker.note_growth(grown * order.workload.body_bytes)
            figures |= _compare(figures, grown)
        return Sample(
            workload=order.workload.name,
            subject=subject,
            round_number=number,
            clean=figures.get("other_cores", 0.0) <= MAX_OTHER_CORES,
            figures=figures,
        )


def _takes_part(subject: str, workload: Workload) -> bool:
    if subject == subjects.JAVA:
        return workload.java
    if workload.kind == "import":
        return subject == subjects.PYTHON[0]  # runs without the measuring loops
    return subject != subjects.BARE or workload.bare


def _compare(figures: Figures, grown: int) -> Figures:
    """Check that the queues hold exactly the acknowledged messages."""
    difference = figures["acknowledged"] - grown
    return {"lost": max(0.0, difference), "duplicated": max(0.0, -difference)}
