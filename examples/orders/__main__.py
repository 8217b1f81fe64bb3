"""Run a broker, the generator, and the job, which is killed twice.

    python -m examples.orders --minutes 30 --version 5.5.0

Ends with an error if a minute is wrong or an alert is missing.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from examples.orders.check import Outcome, read_outcome
from examples.orders.generator import Generator, Order
from examples.orders.job import session, start
from rocketmq_aio.testing import Cluster

TOPIC = "orders"
MINUTE_SECONDS = 0.5
BATCHES_BEFORE_A_KILL = 2
TIMEOUT_SECONDS = 300.0  # for Spark to start and complete two batches
LOOK_SECONDS = 0.1


def job_command(namesrv: str, folder: Path) -> list[str]:
    where = ["--namesrv", namesrv, "--topic", TOPIC, "--folder", str(folder)]
    return [sys.executable, "-m", "examples.orders.job", *where]


@contextmanager
def running_job(namesrv: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job during the block, then kill all of its processes, as in a machine failure."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    job = subprocess.Popen(job_command(namesrv, folder), env=environment, start_new_session=True)
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(job.pid, signal.SIGKILL)  # Python and its JVM
        job.wait()


def batches(folder: Path) -> int:
    """Count the completed batches of the aggregation."""
    commits = folder / "checkpoints" / "minutes" / "commits"
    return sum(path.name.isdigit() for path in commits.glob("*"))


def wait_for_batches(job: subprocess.Popen[bytes], folder: Path, count: int) -> None:
    """Wait until *count* batches are complete; raise if *job* ends: one of its queries failed."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while batches(folder) < count:
        if (status := job.poll()) is not None:
            raise ChildProcessError(f"the job ended with status {status}: see what it printed")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{batches(folder)} batches, not {count}; see what the job printed")
        time.sleep(LOOK_SECONDS)


def run_with_kills(namesrv: str, folder: Path, minutes: int, kills: int) -> list[Order]:
    """Send orders while the job runs, is killed and restarted; return the orders."""
    generator = Generator(namesrv, TOPIC, MINUTE_SECONDS)
    stop = threading.Event()
    sending = threading.Thread(target=generator.run, args=(stop, minutes))
    sending.start()
    try:
        for number in range(1, kills + 1):
            with running_job(namesrv, folder) as job:
                wait_for_batches(job, folder, batches(folder) + BATCHES_BEFORE_A_KILL)
                time.sleep(random.uniform(0, 1))  # at any point of a batch, or between two
            print(f"Killed the job, kill {number}, after {batches(folder)} batches")
    finally:
        stop.set()
        sending.join()
    return generator.sent


def drain(spark: SparkSession, namesrv: str, folder: Path) -> None:
    """Run the job's queries in this process until they have read the remaining messages."""
    for query in start(spark, namesrv, TOPIC, folder, drain=True):
        query.awaitTermination()


def report(outcome: Outcome, sent: list[Order]) -> int:
    for minute, shop, count, cents in sorted(outcome.minutes)[-6:]:
        print(f"  {minute}  {shop:8} {count:3} orders {cents / 100:12,.2f}")
    repeated = outcome.alerts.total() - len(outcome.alerts)
    print(f"{len(outcome.alerts)} alerts, {repeated} of them sent again")
    if problems := outcome.problems(sent):
        print("\n".join(problems), file=sys.stderr)
        return 1
    orders = sum(count for _, _, count, _ in outcome.minutes)
    print(f"exact: {orders} orders in {len(outcome.minutes)} minutes of shops")
    return 0


def run(minutes: int, kills: int, version: str, folder: Path) -> int:
    print(f"Getting RocketMQ {version} ready (the first time it is downloaded: be patient) ...")
    with Cluster.start(version) as cluster:
        for topic in (TOPIC, f"{TOPIC}-alerts"):
            cluster.create_topic(topic, queues=4)
        sent = run_with_kills(cluster.namesrv, folder, minutes, kills)
        print(f"Sent {len(sent)} orders; the job reads the rest")
        spark = session()
        drain(spark, cluster.namesrv, folder)
        outcome = read_outcome(spark, cluster.namesrv, TOPIC, str(folder))
        spark.stop()
    return report(outcome, sent)


def main(arguments: argparse.Namespace) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # ends the job, too
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the default is python3 of the PATH
    chosen = (arguments.minutes, arguments.kills, arguments.version)
    if arguments.folder is not None:
        return run(*chosen, arguments.folder)
    with tempfile.TemporaryDirectory(prefix="orders-") as folder:
        return run(*chosen, Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=30, help="of event time, at least")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--version", default="5.5.0", help="of RocketMQ, such as 4.9.7")
    parser.add_argument("--folder", type=Path, help="kept; a temporary one otherwise")
    sys.exit(main(parser.parse_args()))
