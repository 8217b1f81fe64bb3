"""Changed inputs of the compiled functions, under address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

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


def library(name: str) -> str:
    done = subprocess.run(
        ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.timeout(400)  # half a minute on an idle machine
def test_no_input_makes_the_core_leave_its_bounds(tmp_path: Path) -> None:
    file = compile_core(tmp_path, *FLAGS)

    done = python(
        *("-m", "tests.core.sanitized", str(file)),
        check=False,
        LD_PRELOAD=library("libasan.so"),
        ASAN_OPTIONS="detect_leaks=0",
        PYTHONMALLOC="malloc",  # every object is a block of its own, whose bounds are known
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "records: " in done.stdout
