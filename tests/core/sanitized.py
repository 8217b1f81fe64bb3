"""Tests and fuzzes a core compiled with sanitizers: ``python -m tests.core.sanitized FILE``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.core.building import SANITIZED, load

INPUTS: Final = 10_000
AGREEMENT: Final = tuple(
    f"tests/core/test_{name}.py" for name in ("agreement", "dispatch", "frames", "messages")
)


def main(file: str) -> int:
    module = load(Path(file))
    sys.modules["rocketmq_aio._core"] = module
    os.environ[SANITIZED] = "1"

    # Before any import of the package, whose plugin pytest loads itself.
    if failed := pytest.main([*AGREEMENT, "-q", "-p", "no:cacheprovider"]):
        return failed
    from rocketmq_aio.core import core
    from tests.fuzz.runner import Fuzzer
    from tests.fuzz.targets import TARGETS

    assert core is module
    assert "libasan" in Path("/proc/self/maps").read_text()
    for target in TARGETS:
        if target.name == "records":
            fuzzer = Fuzzer(target, seed=1)
            fuzzer.run(INPUTS)
            sys.stdout.write(f"{target.name}: {fuzzer.count} inputs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
