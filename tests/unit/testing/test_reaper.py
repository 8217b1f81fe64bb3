"""Reaper: removes containers only when its owner died without a regular exit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rocketmq_aio.testing import reaper

# Prints the decision only, which needs no engine.
VERDICT = f"""
import runpy, sys
reaper = runpy.run_path({reaper.__file__!r})
print(reaper["is_orphaned"](int(sys.argv[1])), flush=True)
"""


@pytest.mark.parametrize(("said", "orphaned"), [("\n", "False"), ("", "True")])
def test_a_regular_exit_of_the_owner_leaves_no_orphans(said: str, orphaned: str) -> None:
    verdict = subprocess.run(
        [sys.executable, "-c", VERDICT, str(os.getpid())],
        input=said,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert verdict.stdout == f"{orphaned}\n"


def test_a_dead_owner_is_detected_while_the_input_is_open() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", VERDICT, "1"],  # the parent is not process 1, as after re-parenting
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None

        assert process.stdout.readline() == "True\n"
