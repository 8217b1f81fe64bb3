"""Fuzzes a core compiled with sanitizers: ``python -m tests.core.sanitized FILE INPUTS``."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.core.conftest import load


def main(file: str, inputs: str) -> int:
    module = load(Path(file))
    sys.modules["rocketmq_aio._core"] = module

    # After the core is in place.
    from rocketmq_aio.core import core
    from tests.fuzz.runner import Fuzzer
    from tests.fuzz.targets import TARGETS

    assert core is module
    assert "libasan" in Path("/proc/self/maps").read_text()
    for target in TARGETS:
        if target.name in ("records",):
            fuzzer = Fuzzer(target, seed=1)
            fuzzer.run(int(inputs))
            sys.stdout.write(f"{target.name} {fuzzer.count} inputs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
