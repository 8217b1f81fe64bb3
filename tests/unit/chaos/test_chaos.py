"""Chaos runs repeat exactly, find a loss, and shorten the plans that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.minimise import minimised
from tests.chaos.plan import Plan, draw_plan

ROOT = Path(__file__).parents[3]
SECONDS = 300.0


@cache
def chaos(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


@pytest.mark.long
def test_a_seed_has_the_same_history_in_every_process() -> None:
    first = chaos("--seed", 10, "--runs", 3, "--history", PYTHONHASHSEED="1")
    second = chaos("--seed", 10, "--runs", 3, "--history", PYTHONHASHSEED="2")
    histories = [each.stdout.splitlines()[:-1] for each in (first, second)]
    assert len(histories[0]) > 100, first.stderr
    assert histories[0] == histories[1]


@pytest.mark.long
def test_a_history_does_not_depend_on_the_runs_before() -> None:
    alone = chaos("--seed", 12, "--history").stdout.splitlines()[:-1]
    others = chaos("--seed", 10, "--runs", 3, "--history", PYTHONHASHSEED="1")
    after_others = others.stdout.splitlines()[:-1]
    assert after_others[-len(alone) :] == alone


@pytest.mark.long
def test_seeds_violate_no_rule() -> None:
    result = chaos("--seed", 0, "--runs", 12)
    assert result.returncode == 0, result.stdout + result.stderr


def test_plans_that_fail_are_shortened_to_their_cause() -> None:
    plan = next(plan for plan in map(draw_plan, range(100)) if len(plan.faults) > 3)
    cause = plan.faults[1]

    def fails(shorter: Plan) -> bool:
        return cause in shorter.faults

    shortest = minimised(plan, fails)
    assert shortest.faults == (cause,)
    assert [client.name for client in shortest.clients if client.name != cause.target] in (
        [],
        [shortest.clients[0].name],
    )
