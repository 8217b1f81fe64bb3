"""The manual page of ``rmq``."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.unit.cli.test_rmq import commands

TOOL = Path(__file__).parents[3] / "tools" / "man_page.py"


@pytest.fixture(scope="module")
def page() -> str:
    made: str = runpy.run_path(str(TOOL))["man_page"]()
    return made


def test_the_page_describes_every_command_and_its_options(page: str) -> None:
    plain = page.replace("\\-", "-")
    sections = {re.split(r" \\f", line)[0] for line in re.findall(r"^\.SS (.+)$", plain, re.M)}
    known = commands()

    assert sections == {f"rmq {name}" for name in known}
    named = {name for each in known.values() for param in each.params for name in param.opts}
    assert {name for name in named if name.startswith("--") and name not in plain} == set()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff checks the macros")
def test_the_page_has_no_errors_of_groff(page: str) -> None:
    ended = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-Tascii"],
        input=page,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stderr == ""
