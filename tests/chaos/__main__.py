"""Chaos runs: random clients and faults, judged by `tests.history`.

Without ``--topology`` in a simulated cluster: a run is repeated exactly by its seed, and
``--seed N --history`` prints everything that happened.  With it on real brokers, where a seed
repeats the clients and the faults.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter

_now = time.monotonic  # the real one, which the next import replaces

from tests.chaos import virtual  # noqa: E402, F401 - first of all modules that read clocks
from tests.chaos.cluster_run import run_topology  # noqa: E402
from tests.chaos.minimise import minimised  # noqa: E402
from tests.chaos.plan import Plan, draw_plan  # noqa: E402
from tests.chaos.runner import prepare, run  # noqa: E402
from tests.chaos.simulation import Result  # noqa: E402
from tests.chaos.topology import TOPOLOGIES  # noqa: E402

MOST_SHOWN = 5  # violations of a run


def main() -> int:
    """Return the exit status: 1 if a run violated a rule."""
    parser = ArgumentParser(
        "python -m tests.chaos", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--runs", type=int, help="number of seeds; default: 1, or by --minutes")
    parser.add_argument("--minutes", type=float, help="begin no run after this time")
    parser.add_argument("--history", action="store_true", help="print the events of each run")
    parser.add_argument("--minimise", action="store_true", help="shorten the plans that fail")
    parser.add_argument("--topology", choices=TOPOLOGIES, help="run on real brokers")
    parser.add_argument("--version", help="of the real brokers; default: the newest")
    parser.add_argument("--backend", default="jvm", help="of the real brokers")
    options = parser.parse_args()
    if options.topology:
        return _run_on_brokers(options)
    prepare()
    count = options.runs or (1 if options.minutes is None else sys.maxsize)
    began, failed, runs, seconds = _now(), [], 0, 0.0
    for seed in range(options.seed, options.seed + count):
        if options.minutes is not None and _now() - began > options.minutes * 60:
            break
        result = run(draw_plan(seed))
        runs, seconds = runs + 1, seconds + result.seconds
        if options.history:
            print("\n".join(result.history))
        if result.violations:
            failed.append(seed)
            _report(result, options)
    used = sum(os.times()[2:4])
    print(
        f"{runs} runs, {seconds:.0f} virtual seconds, {used:.1f} s of processor time; "
        f"failed: {', '.join(map(str, failed)) or 'none'}"
    )
    return 1 if failed else 0


def _run_on_brokers(options: Namespace) -> int:
    seeds = range(options.seed, options.seed + (options.runs or sys.maxsize))
    minutes = 0.0 if options.minutes is None and options.runs is None else options.minutes
    failed = run_topology(
        options.topology,
        options.version,
        options.backend,
        seeds,
        sys.maxsize if minutes is None else minutes,
    )
    print(f"failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


def _report(result: Result, options: Namespace) -> None:
    _print(result)
    if options.minimise:
        rules = {_rule(violation) for violation in result.violations}

        def fails(plan: Plan) -> bool:
            return any(_rule(violation) in rules for violation in run(plan).violations)

        print("shortened:")
        _print(run(minimised(result.plan, fails)))


def _print(result: Result) -> None:
    print("\n".join(result.plan.lines()))
    for violation in result.violations[:MOST_SHOWN]:
        print("  VIOLATION", violation, flush=True)


def _rule(violation: str) -> str:
    """Return what a violation has in common with others: its rule, or its first words."""
    return " ".join(violation.split(" s: ", 1)[-1].split()[:1])


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # it decides about the order of sets of strings
        arguments = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main())
