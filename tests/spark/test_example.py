"""The examples of the connector on a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from examples.orders.__main__ import running_job, wait_for_batches
from examples.orders.check import Outcome, expected_alerts, expected_minutes
from examples.orders.generator import Order
from tests.spark.class_archive import jvm_options

pytestmark = pytest.mark.usefixtures("rocketmq_backend")  # brokers start fast

ROOT: Final = Path(__file__).parents[2]
SECONDS: Final = 800.0


def run(*command: str) -> str:
    """Run a command of the repository's root to a good end; return what it printed."""
    submit = f"--driver-java-options '{jvm_options()}' pyspark-shell"
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_orders_are_exact_after_the_job_was_killed(rocketmq_version: str, tmp_path: Path) -> None:
    output = run(
        *("-m", "examples.orders", "--minutes", "6", "--kills", "1"),
        *("--version", rocketmq_version, "--folder", str(tmp_path / "orders")),
    )

    assert re.findall(r"^Killed the job, kill (\d)", output, re.M) == ["1"]
    exact = re.search(r"^exact: (\d+) orders in (\d+) minutes of shops$", output, re.M)
    assert exact is not None, output
    assert int(exact[1]) >= 150
    assert int(exact[2]) >= 15


def test_the_example_check_detects_missing_wrong_and_duplicate_rows() -> None:
    sent = [Order(str(n), "Oslo", 99_000, "2026-01-05T09:00:00.000+00:00") for n in range(3)]
    right = [(*where, *what) for where, what in expected_minutes(sent).items()]
    alerts = Counter(expected_alerts(sent))

    assert Outcome(right, alerts).problems(sent) == []
    assert Outcome(right, alerts + alerts).problems(sent) == []  # alerts may come twice
    assert len(Outcome([], alerts).problems(sent)) == 1
    assert len(Outcome(right * 2, alerts).problems(sent)) == 1
    assert len(Outcome([(*right[0][:2], 2, 1)], alerts).problems(sent)) == 2
    assert len(Outcome(right, Counter()).problems(sent)) == 3


def test_the_example_fails_at_once_if_its_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = [sys.executable, "-c", "raise SystemExit(3)"]
    monkeypatch.setattr("examples.orders.__main__.job_command", lambda *_: ended)

    with (
        pytest.raises(ChildProcessError, match="status 3"),
        running_job("127.0.0.1:9876", tmp_path) as job,
    ):
        wait_for_batches(job, tmp_path, 1)


def test_the_lag_of_a_query_is_plotted(rocketmq_version: str, tmp_path: Path) -> None:
    plot = tmp_path / "lag.png"

    output = run(
        *("examples/lag_plot.py", "--seconds", "6", "--to", str(plot)),
        *("--version", rocketmq_version),
    )

    batches = re.search(r"^(\d+) batches, at most ([\d,]+) behind", output, re.M)
    assert batches is not None, output
    assert int(batches[2].replace(",", "")) > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
