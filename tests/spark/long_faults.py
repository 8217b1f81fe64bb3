"""The long form of `test_faults`: one run per victim, many kills each.

python -m tests.spark.long_faults --kills 20 --version 5.5.0
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from rocketmq_aio.testing import Cluster
from tests.spark.copy_run import QUEUES, VICTIMS, CopyRun, Load, kill_all
from tests.spark.support import end_jvm, running_session


def run_victim(victim: str, kills: int, version: str, seed: int, folder: Path) -> bool:
    """Kill *victim* that often during one copy; tell whether the sink equals the log."""
    begun = time.monotonic()
    with Cluster.start(version) as cluster:
        cluster.create_topic("numbers", queues=QUEUES)
        with CopyRun(cluster, "numbers", folder) as run:
            with Load(cluster.namesrv, "numbers"):
                kill_all(run, [victim] * kills, random.Random(seed))
            run.wait_until_copied()
            in_log = run.log_rows()
    with running_session(folder / "session") as spark:
        in_sink = run.sink_rows(spark)
    missing, extra = (in_log - in_sink).total(), (in_sink - in_log).total()
    sys.stdout.write(
        f"{victim}: {kills} kills, {in_log.total()} messages, {run.batches() + 1} batches,"
        f" {missing} missing, {extra} too many, {time.monotonic() - begun:.0f} s\n"
    )
    sys.stdout.flush()
    return not missing and not extra


def main(arguments: argparse.Namespace) -> int:
    chosen = [arguments.victim] if arguments.victim else list(VICTIMS)
    results = []
    for victim in chosen:
        with tempfile.TemporaryDirectory(prefix=f"spark-faults-{victim}-") as folder:
            options = (arguments.kills, arguments.version, arguments.seed, Path(folder))
            results.append(run_victim(victim, *options))
    end_jvm()
    return 0 if all(results) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--victim", choices=VICTIMS)
    parser.add_argument("--version", default="5.5.0")
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(main(parser.parse_args()))
