"""Fuzzes targets: ``python -m tests.fuzz --inputs 10000000 --seed 7 --target records``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import process_time
from typing import Final

from tests.fuzz.files import FILES
from tests.fuzz.requests import REQUESTS
from tests.fuzz.runner import Fuzzer, FuzzError
from tests.fuzz.target import Target
from tests.fuzz.wire import WIRE

TARGETS: Final = (*WIRE, *REQUESTS, *FILES)
ROUND: Final = 20_000  # inputs of all targets; then the next round begins with another seed


def shares(targets: tuple[Target, ...], inputs: int) -> dict[str, int]:
    """Return how many of *inputs* each of *targets* gets, by weight."""
    total = sum(each.weight for each in targets)
    return {each.name: max(1, inputs * each.weight // total) for each in targets}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="stop after this CPU time")
    parser.add_argument("--target", action="append", choices=[each.name for each in TARGETS])
    parser.add_argument("--failures", type=Path, help="write failing inputs into this folder")
    parser.add_argument("--keep-going", action="store_true", help="drop a target that failed")
    options = parser.parse_args()
    chosen = [each for each in TARGETS if options.target is None or each.name in options.target]
    fuzzers = [Fuzzer(each, options.seed) for each in chosen]
    failed = _run(fuzzers, options)
    for fuzzer in fuzzers:
        outcomes, slowest = len(fuzzer.known), fuzzer.slowest * 1000
        line = f"{fuzzer.target.name:16}{fuzzer.count:10} inputs{outcomes:6} outcomes"
        sys.stdout.write(f"{line}   slowest {slowest:.0f} ms CPU\n")
    sys.stdout.write(f"{sum(each.count for each in fuzzers)} inputs, {failed} failed\n")
    return 1 if failed else 0


def _run(fuzzers: list[Fuzzer], options: argparse.Namespace) -> int:
    """Run rounds of all targets; return how many targets failed."""
    going, failed, done = list(fuzzers), 0, 0
    while going and done < options.inputs:
        if options.seconds is not None and process_time() > options.seconds:
            break
        count = min(ROUND, options.inputs - done)
        parts = shares(tuple(each.target for each in going), count)
        for fuzzer in list(going):
            try:
                fuzzer.run(parts[fuzzer.target.name])
            except FuzzError as error:
                _report(error, fuzzer, options.failures)
                failed += 1
                going.remove(fuzzer)
                if not options.keep_going:
                    return failed
        done += count
        sys.stderr.write(f"\r{done} inputs")
    return failed


def _report(error: FuzzError, fuzzer: Fuzzer, folder: Path | None) -> None:
    sys.stdout.write(f"{error}\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / fuzzer.target.name).write_bytes(error.data)


if __name__ == "__main__":
    sys.exit(main())
