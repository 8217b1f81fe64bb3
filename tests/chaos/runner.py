"""Runner: each run in a process of its own, forked from one that has loaded everything."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import traceback
from importlib import import_module
from types import FrameType
from typing import Final

from tests.chaos.loop import StuckError
from tests.chaos.ordered import keep_order_of_sets
from tests.chaos.plan import Plan
from tests.chaos.simulation import Result, simulate

MOST_SECONDS: Final = 30.0  # of processor time, of a run

# Loaded when they are used first; here, so that it is not once per run.
_LATE: Final = ("structlog", "anyio._backends._asyncio")


def prepare() -> None:
    """Load all modules; call it once, before `run`."""
    for name in _LATE:
        import_module(name)
    keep_order_of_sets()
    gc.collect()
    gc.freeze()


def run(plan: Plan) -> Result:
    """Run *plan* in a forked process, so that runs share nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_in_child(plan, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Result(plan, (), ("the process of the run failed",), 0.0)
    result: Result = pickle.loads(data)
    return result


def _run_in_child(plan: Plan, writer: int) -> None:
    status = 1
    signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        result = simulate(plan)
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not return
        traceback.print_exc()
    finally:
        os._exit(status)


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise StuckError(f"the run took {MOST_SECONDS:g} s of processor time")
