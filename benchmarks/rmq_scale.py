"""Time and memory of `rmq` on a large embedded cluster: ``python -m benchmarks.rmq_scale``.

5,000 topics, one with 10,000 queues, and 500 groups that have committed in two topics each.  Every
command is a process of its own, so the seconds contain its start.  The exit code is 1 if one fails,
takes longer than 3 s or more than 300 MiB.  On a busy machine look at the CPU time of the command
and of the cluster instead of the seconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import Final, NamedTuple

from rocketmq_aio.embedded.cluster import EmbeddedCluster

SECONDS: Final = 3.0
MEBIBYTES: Final = 300
BROKERS: Final = 2
TOPICS: Final = [f"topic-{number:04}" for number in range(5000)]
GROUPS: Final = [f"group-{number:03}" for number in range(500)]
WIDE: Final = "wide"
WIDE_QUEUES: Final = 10_000
RMQ: Final = (sys.executable, "-c", "from rocketmq_aio.cli import main; main()")
COMMANDS: Final = (
    "--help",
    "topic list",
    "topic list --internal --match *topic-00* --skip 10 --limit 10",
    "topic list -o yaml",
    "topic clusters topic-0001",
    f"topic stats {WIDE}",
    f"topic stats {WIDE} -o json",
    f"topic route {WIDE}",
    f"topic config {WIDE}",
    f"topic groups {WIDE}",
    "group list",
    "group progress group-001",
    f"group progress group-000 {WIDE}",
    "group config group-001",
    "lag",
    "lag --queues",
    "lag --match group-00* --above 0",
    "top --count 1",
    "dlq list",
    "cluster list",
    "cluster brokers",
    "broker stats",
    "broker consume-stats",
    "broker producers",
    "namesrv config",
    "doctor",
    f"consume {WIDE} --from beginning --exit-at-end",
)


class Cost(NamedTuple):
    """Time and memory of a command."""

    seconds: float
    cpu: float
    cluster_cpu: float
    mebibytes: float
    code: int
    lines: int
    problem: str


def measure(command: str, namesrv: str) -> Cost:
    """Run *command* and return its cost; the memory is the largest resident set."""
    begun, cluster_cpu = time.perf_counter(), time.process_time()
    process = subprocess.Popen(
        [*RMQ, *command.split()],
        env={**os.environ, "ROCKETMQ_NAMESRV": namesrv, "RMQ_CONFIG": os.devnull},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    lines = sum(1 for _ in process.stdout)
    error = process.stderr.read().decode().strip()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = code = os.waitstatus_to_exitcode(status)
    return Cost(
        time.perf_counter() - begun,
        used.ru_utime + used.ru_stime,
        time.process_time() - cluster_cpu,
        used.ru_maxrss / 1024,
        code,
        lines,
        error if code else "",
    )


def fill(cluster: EmbeddedCluster) -> None:
    """Create the groups and commit offsets, some in the wide topic."""
    for number, group in enumerate(GROUPS):
        cluster.create_group(group)
        topics = [TOPICS[number], TOPICS[-number - 1], *([WIDE] if number < 2 else [])]
        for broker in cluster.brokers:
            for topic in topics:
                for queue in range(WIDE_QUEUES // BROKERS if topic == WIDE else 2):
                    broker.state.committed[group, topic, queue] = 0


def main() -> int:
    """Measure the commands, or those that contain a word of the arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only commands that contain one of them")
    words = parser.parse_args().words
    topics = {**dict.fromkeys(TOPICS, 2), WIDE: WIDE_QUEUES // BROKERS}
    exceeded = 0
    with EmbeddedCluster(BROKERS, topics=topics) as cluster:
        fill(cluster)
        for command in COMMANDS:
            if words and not any(word in command for word in words):
                continue
            cost = measure(command, cluster.namesrv)
            is_good = cost.seconds <= SECONDS and cost.mebibytes <= MEBIBYTES and not cost.code
            exceeded += not is_good
            print(
                f"{'ok' if is_good else 'EXCEEDED':<9} {cost.seconds:6.2f} s "
                f"(CPU {cost.cpu:.2f} + {cost.cluster_cpu:.2f}) "
                f"{cost.mebibytes:5.0f} MiB {cost.lines:6} lines  rmq {command}  {cost.problem}",
                flush=True,
            )
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
