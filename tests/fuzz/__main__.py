"""Fuzzes decoders: ``python -m tests.fuzz --inputs 10000000 --seed 7 --target records``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import warnings
from pathlib import Path
from time import process_time
from typing import Final

from tests.fuzz.clients import fuzz_clients
from tests.fuzz.runner import Fuzzer, FuzzError
from tests.fuzz.targets import TARGETS, shares

ROUND: Final = 20_000  # inputs of all targets together
CALLS: Final = 100  # of whole clients, per cluster
CLIENTS: Final = "clients"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of decoders, or of clients")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="stop after this CPU time")
    names = [each.name for each in TARGETS]
    parser.add_argument("--target", action="append", choices=[*names, CLIENTS])
    parser.add_argument("--failures", type=Path, help="write failing inputs into this folder")
    parser.add_argument("--keep-going", action="store_true", help="drop a target that failed")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.target == [CLIENTS]:
        return _run_clients(options)
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
    while going and done < options.inputs and not _late(options):
        count = min(ROUND, options.inputs - done)
        parts = shares([each.target for each in going], count)
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


def _late(options: argparse.Namespace) -> bool:
    return options.seconds is not None and process_time() > options.seconds


def _report(error: FuzzError, fuzzer: Fuzzer, folder: Path | None) -> None:
    sys.stdout.write(f"{error}\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / fuzzer.target.name).write_bytes(error.data)


def _run_clients(options: argparse.Namespace) -> int:
    """Run clusters until enough responses were changed; return 1 if a rule was broken."""
    changed, seed = 0, options.seed
    while changed < options.inputs and not _late(options):
        try:
            changed += sum(asyncio.run(fuzz_clients(seed, CALLS)).values())
        except (AssertionError, TimeoutError) as error:
            sys.stdout.write(f"seed {seed}: {type(error).__name__}: {error}\n")
            return 1
        seed += 1
        sys.stderr.write(f"\r{changed} changed responses")
    sys.stdout.write(f"\n{changed} changed responses, {seed - options.seed} clusters\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
