"""A core compiled with address and undefined-behaviour sanitizers, and processes that use it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from tests.core.building import compile_core, python

FLAGS: Final = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-O1",
    "-Werror",
    "-Wextra",
    "-Wno-unused-parameter",
)


def run_sanitized(folder: Path, part: str) -> str:
    """Compile the core into *folder* and run *part* of `sanitized` on it; return its output."""
    file = compile_core(folder, *FLAGS)
    done = python(
        *("-m", "tests.core.sanitized", str(file), part),
        check=False,
        LD_PRELOAD=_library("libasan.so"),
        ASAN_OPTIONS="detect_leaks=0",
        PYTHONMALLOC="malloc",  # every object is a block of its own, whose bounds are known
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def _library(name: str) -> str:
    done = subprocess.run(
        ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
