"""Command line of chaos runs: ``python -m tests.chaos --seeds 0:1000``."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Final

from tests.chaos import virtual  # noqa: F401 - first: it replaces the clocks
from tests.chaos.loop import Stuck
from tests.chaos.ordered import keep_order_of_sets
from tests.chaos.plan import Plan, draw_plan
from tests.chaos.simulation import Result, simulate

MOST_SECONDS: Final = float(os.environ.get("CHAOS_MOST", "20"))  # of processor time, of a run

_real_time = time.monotonic

for _late in ("structlog", "anyio._backends._asyncio"):  # once, not in every child
    import_module(_late)
keep_order_of_sets()


def in_child(plan: Plan) -> Result:
    """Run *plan* in a forked process, so that runs share nothing."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
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
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Result(plan, (), ("the process of the run failed",), 0.0)
    result: Result = pickle.loads(data)  # noqa: S301 - made by the child
    return result


def _too_slow(_number: int, _frame: object) -> None:
    raise Stuck(f"the run took {MOST_SECONDS:g} s of processor time")


def run_all(plans: Iterable[Plan]) -> Iterator[Result]:
    for plan in plans:
        yield in_child(plan)


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--runs", type=int, help="number of seeds")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--history", action="store_true", help="print the history")
    options = parser.parse_args()
    return _simulate(options)


def _simulate(options: Namespace) -> int:
    count = options.runs or (1 if options.minutes is None else sys.maxsize)
    until = None if options.minutes is None else _real_time() + options.minutes * 60
    failed = []
    gc.collect()
    gc.freeze()
    began, runs, virtual_seconds, lines = _real_time(), 0, 0.0, 0
    for seed in range(options.seed, options.seed + count):
        result = in_child(draw_plan(seed))
        runs += 1
        virtual_seconds += result.seconds
        lines += len(result.history)
        if options.history:
            print("\n".join(result.history))
        if result.violations:
            failed.append(seed)
            print("\n".join(result.plan.lines()))
            for violation in result.violations[:5]:
                print("  VIOLATION", violation[:3000], flush=True)
        if until is not None and _real_time() > until:
            break
    took = _real_time() - began
    print(
        f"{runs} run(s), {virtual_seconds:.0f} virtual seconds, {lines} events in {took:.1f} s "
        f"({sum(os.times()[2:4]):.1f} s of processor time); "
        f"failed: {failed or 'none'}"
    )
    sys.stdout.flush()
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings
        arguments = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
