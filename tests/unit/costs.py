"""Measures memory and CPU time of calls, independent of machine load."""

import time
import tracemalloc
from collections.abc import Callable

MIB = 1024 * 1024


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak memory of *call* in addition to memory held before."""
    return _held_and_peak_bytes(call)[1]


def held_bytes(call: Callable[[], object]) -> int:
    """Return how much more memory is held after *call* than before."""
    return _held_and_peak_bytes(call)[0]


def _held_and_peak_bytes(call: Callable[[], object]) -> tuple[int, int]:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        held, peak = tracemalloc.get_traced_memory()
        return held - before, peak - before
    finally:
        tracemalloc.stop()


def cpu_seconds(call: Callable[[], object]) -> float:
    """Return the shortest CPU time of *call* in a few runs."""
    tries: list[float] = []
    for _ in range(5):
        start = time.thread_time()
        call()
        tries.append(time.thread_time() - start)
    return min(tries)
