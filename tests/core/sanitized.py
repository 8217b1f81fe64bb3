"""Tests or fuzzes a core compiled with sanitizers.

python -m tests.core.sanitized FILE agreement|inputs
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from tests.core.building import SANITIZED, load

INPUTS: Final = 10_000
AGREEMENT: Final = tuple(
    f"tests/core/test_{name}.py" for name in ("agreement", "dispatch", "frames", "messages")
)


def agreement(module: ModuleType) -> int:
    """Run the tests that compare the core with Python."""
    # Before any import of the package, whose plugin pytest loads itself.
    failed = pytest.main([*AGREEMENT, "-q", "-p", "no:cacheprovider"])
    check_used(module)
    return failed


def inputs(module: ModuleType) -> int:
    """Decode changed records."""
    from tests.fuzz.runner import Fuzzer
    from tests.fuzz.targets import TARGETS

    check_used(module)
    for target in TARGETS:
        if target.name == "records":
            fuzzer = Fuzzer(target, seed=1)
            fuzzer.run(INPUTS)
            sys.stdout.write(f"{target.name}: {fuzzer.count} inputs\n")
    return 0


def check_used(module: ModuleType) -> None:
    from rocketmq_aio.core import core

    assert core is module
    assert "libasan" in Path("/proc/self/maps").read_text()


PARTS: Final = {"agreement": agreement, "inputs": inputs}


def main(file: str, part: str) -> int:
    module = load(Path(file))
    sys.modules["rocketmq_aio._core"] = module
    os.environ[SANITIZED] = "1"
    return PARTS[part](module)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
