"""Virtual time and seeded randomness of a Python process.

Import this module before `rocketmq_aio`: its modules bind ``time.monotonic`` and others when they
are imported.  Outside of a simulation the replaced functions call the real ones.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol


class VirtualClock(Protocol):
    """The clock of a simulation."""

    def monotonic(self) -> float:
        """Return virtual seconds."""
        ...

    def wall_ns(self) -> int:
        """Return the wall-clock time of the current simulated process, in nanoseconds."""
        ...


_clock: VirtualClock | None = None
_draws: random.Random | None = None

PROCESS_ID: Final = 4242  # of every simulated process


def begin(clock: VirtualClock, seed: int) -> None:
    """Replace time and randomness in this process, for good."""
    global _clock, _draws
    _clock, _draws = clock, random.Random(seed)
    random.seed(seed)


def _replace(module: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(module, name, make(getattr(module, name)))


def _monotonic(real: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() if _clock is None else _clock.monotonic()


def _monotonic_ns(real: Callable[[], int]) -> Callable[[], int]:
    return lambda: real() if _clock is None else int(_clock.monotonic() * 1e9)


def _gettime(real: Callable[[int], float]) -> Callable[[int], float]:
    return lambda clock: real(clock) if _clock is None else _clock.monotonic()


def _wall(real: Callable[[], float]) -> Callable[[], float]:
    return lambda: real() if _clock is None else _clock.wall_ns() / 1e9


def _wall_ns(real: Callable[[], int]) -> Callable[[], int]:
    return lambda: real() if _clock is None else _clock.wall_ns()


def _urandom(real: Callable[[int], bytes]) -> Callable[[int], bytes]:
    return lambda size: real(size) if _draws is None else _draws.randbytes(size)


def _getpid(real: Callable[[], int]) -> Callable[[], int]:
    return lambda: real() if _clock is None else PROCESS_ID


def _install() -> None:
    early = sorted(name for name in sys.modules if name.split(".")[0] in ("rocketmq_aio", "anyio"))
    if early:
        raise RuntimeError(f"imported before the clocks were replaced: {', '.join(early)}")
    os.environ["TZ"] = "UTC"
    time.tzset()
    _replace(time, "monotonic", _monotonic)
    _replace(time, "perf_counter", _monotonic)
    _replace(time, "monotonic_ns", _monotonic_ns)
    _replace(time, "clock_gettime", _gettime)
    _replace(time, "time", _wall)
    _replace(time, "time_ns", _wall_ns)
    _replace(os, "urandom", _urandom)
    _replace(os, "getpid", _getpid)
    random._urandom = os.urandom  # type: ignore[attr-defined]  # of `SystemRandom` and `secrets`


_install()
