"""Driver, workers and broker killed between a topic and an idempotent sink: exact results."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketmq_aio.testing import Cluster
from tests.spark.copy_run import QUEUES, CopyRun, Load, Row, kill_all
from tests.spark.support import running_session, wait_until

# `python -m tests.spark.long_faults --kills 20` does more of the same.
KILLS = {"driver": 1, "reader": 2, "worker": 2, "broker": 1}
LOOK_SECONDS = 0.002
ATTEMPTS = 5


@pytest.fixture(scope="module")
def cluster(fresh_cluster: Callable[..., Cluster]) -> Cluster:
    """A broker that the tests of this module may kill."""
    return fresh_cluster()


def copied(run: CopyRun, folder: Path) -> Counter[Row]:
    with running_session(folder / "session") as spark:
        return run.sink_rows(spark)


@pytest.mark.timeout(1200, func_only=True)
def test_the_sink_equals_the_log_after_driver_reader_workers_and_broker_were_killed(
    cluster: Cluster, tmp_path: Path, jvm: None
) -> None:
    chance = random.Random(20261122)
    kills = [victim for victim, count in KILLS.items() for _ in range(count)]
    chance.shuffle(kills)
    cluster.create_topic("numbers", queues=QUEUES)

    with CopyRun(cluster, "numbers", tmp_path) as run:
        with Load(cluster.namesrv, "numbers"):
            kill_all(run, kills, chance)
        run.wait_until_copied()
    in_log = run.log_rows()

    assert copied(run, tmp_path) == in_log
    assert len(in_log) > 20 * len(kills)


def test_latest_is_fixed_by_the_first_batch_even_if_the_driver_is_killed(
    cluster: Cluster, tmp_path: Path, jvm: None
) -> None:
    cluster.create_topic("busy", queues=QUEUES)

    with ExitStack() as running:
        with Load(cluster.namesrv, "busy"):
            run = killed_in_the_first_batch(cluster, "busy", tmp_path)
            running.enter_context(run)
            run.wait_for_batches(3)
        run.wait_until_copied()

    start = recorded_start(run.folder, "busy")
    in_log = run.log_rows()
    wanted = Counter({row: 1 for row in in_log if row[2] >= start[row[0], row[1]]})
    assert copied(run, tmp_path) == wanted
    assert 0 < len(wanted) < len(in_log)


def killed_in_the_first_batch(cluster: Cluster, topic: str, folder: Path) -> CopyRun:
    """Return a run whose driver ended between planning batch 0 and committing it."""
    for run in runs(cluster, topic, folder):
        planned = run.folder / "checkpoint" / "offsets" / "0"
        with run:
            wait_until(planned.exists, "batch 0 is planned", pause=LOOK_SECONDS)
        if run.batches() < 0:
            return run
    raise AssertionError(f"batch 0 was always done before the kill, {ATTEMPTS} times")


def runs(cluster: Cluster, topic: str, folder: Path) -> Iterator[CopyRun]:
    for attempt in range(ATTEMPTS):
        yield CopyRun(cluster, topic, folder / f"attempt-{attempt}", startingOffsets="latest")


def recorded_start(folder: Path, topic: str) -> dict[tuple[str, int], int]:
    """First offset of each queue, from the offsets of batch 0."""
    text = (folder / "checkpoint" / "offsets" / "0").read_text()
    brokers = json.loads(text.splitlines()[-1])["from"][topic]
    return {(b, int(q)): offset for b, queues in brokers.items() for q, offset in queues.items()}
