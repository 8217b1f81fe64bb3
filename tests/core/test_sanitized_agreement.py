"""The tests of agreement with Python, under address and undefined-behaviour sanitizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.core.sanitizing import run_sanitized


@pytest.mark.timeout(400)  # half a minute on an idle machine
def test_no_tested_input_makes_the_core_leave_its_bounds(tmp_path: Path) -> None:
    assert " passed" in run_sanitized(tmp_path, "agreement")
