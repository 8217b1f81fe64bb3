"""Runs targets: mutates seeds, keeps inputs with new outcomes, reports the first failure."""

from __future__ import annotations

import signal
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from time import thread_time
from types import FrameType
from typing import Final

from tests.fuzz.mutation import Mutator
from tests.fuzz.target import Signature, Target

MAX_KEPT: Final = 2000  # inputs kept as seeds
MAX_KEPT_BYTES: Final = 4096  # of one: long ones are slow, and mutations lengthen them
HANG_SECONDS: Final = 20  # of CPU, for `WATCHED` inputs, which need less than one
WATCHED: Final = 500
MEMORY_EVERY: Final = 2000  # inputs between two of which the memory is measured
SPARE_BYTES: Final = 3 * 1024 * 1024  # of any input: windows of inflaters, caches


class HangError(Exception):
    """Inputs took `HANG_SECONDS` of CPU."""


class FuzzError(AssertionError):
    """A rule was broken; the message has the input."""

    def __init__(self, target: Target, data: bytes, seed: int, cause: Exception) -> None:
        shown = repr(data) if len(data) < 4000 else f"{data[:2000]!r} ... {len(data)} bytes"
        super().__init__(f"{target.name}, seed {seed}: {type(cause).__name__}: {cause}\n{shown}")
        self.data = data


@dataclass
class Fuzzer:
    """Fuzzes one target, with the choices that follow from *seed*."""

    target: Target
    seed: int
    count: int = 0
    slowest: float = 0.0  # CPU seconds of one input
    known: set[Signature] = field(default_factory=set)

    def __post_init__(self) -> None:
        random = Random(f"{self.target.name}-{self.seed}")
        self._mutator = Mutator(random)
        self._seeds = list(self.target.seeds(random))
        self._kept: list[bytes] = []
        for data in self._seeds:
            self._run(data)

    def run(self, inputs: int) -> None:
        """Check *inputs* inputs.

        :raises FuzzError: a rule was broken
        """
        random, mutate = self._mutator.random, self.target.mutate
        for start in range(0, inputs, WATCHED):
            with hang_detector():
                for _ in range(min(WATCHED, inputs - start)):
                    seeds = self._kept if self._kept and random.random() < 0.5 else self._seeds
                    self._run(mutate(self._mutator, random.choice(seeds), self._seeds))

    def _run(self, data: bytes) -> None:
        self.count += 1
        started = thread_time()
        try:
            if self.count % MEMORY_EVERY == 0:
                signature = self._measured(data)
            else:
                signature = self.target.check(data)
        except Exception as error:
            raise FuzzError(self.target, data, self.seed, error) from error
        self.slowest = max(self.slowest, thread_time() - started)
        if signature not in self.known and len(self.known) < MAX_KEPT:
            self.known.add(signature)
            if len(data) <= MAX_KEPT_BYTES:
                self._kept.append(data)

    def _measured(self, data: bytes) -> Signature:
        tracemalloc.start()
        try:
            signature = self.target.check(data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        most = SPARE_BYTES + self.target.grows * len(data)
        assert peak <= most, f"{peak} bytes of memory for {len(data)} bytes"
        return signature


@contextmanager
def hang_detector() -> Iterator[None]:
    """Raise HangError in a block that takes `HANG_SECONDS` of CPU."""
    usable = threading.current_thread() is threading.main_thread()
    if not usable or not hasattr(signal, "setitimer"):
        yield
        return

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise HangError(f"{HANG_SECONDS} s of CPU")

    before = signal.signal(signal.SIGVTALRM, on_alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
