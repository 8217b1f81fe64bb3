"""Clock of leases: it goes on while the machine is suspended, as the clocks of brokers do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial


def _suspension_aware() -> Callable[[], float]:
    if sys.platform == "linux":
        number = time.CLOCK_BOOTTIME
    elif sys.platform == "darwin":
        number = time.CLOCK_MONOTONIC  # `time.monotonic` reads another one, which stops
    else:  # Windows: this one includes suspension
        return time.monotonic
    try:
        time.clock_gettime(number)
    except OSError:  # a sandbox without it
        return time.monotonic
    return partial(time.clock_gettime, number)


_read = _suspension_aware()


def boottime() -> float:
    """Return seconds that never go back, including those of suspension.

    The clock of the event loop stops then on Linux and macOS: it is for waiting, this one is for
    what brokers grant until some time, such as locks and popped messages.
    """
    return _read()
