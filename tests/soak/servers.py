"""Servers of a soak test in a process of their own: only the clients are measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rocketmq_aio.testing import Cluster, probe

ROOT: Final = Path(__file__).parents[2]
BROKERS: Final = 2
QUEUES: Final = 4
DOWN_SECONDS: Final = 1.0
SET_MESSAGE_REQUEST_MODE: Final = 401
STOP_SECONDS: Final = 60.0
# Undecided transactions are checked soon, so that few are open at the end, and often enough: an
# idle producer registers with a restarted broker by its next heartbeat, up to 30 s later.
PROPERTIES: Final = {
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
    "transactionCheckMax": "1000",
    # The defaults: those of `rocketmq_aio.testing` are for few transactions.
    "transactionOpMsgMaxSize": "4096",
    "transactionOpBatchInterval": "3000",
}


class ServerProcess:
    """Handle of the process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.namesrv = self._read()

    def restart(self, number: int) -> None:
        """Kill a broker and start it again; blocks until it responds."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        self._read()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the servers ended")
        return line.strip()


@contextmanager
def start_servers(
    backend: str, topics: list[str], popped: dict[str, str]
) -> Iterator[ServerProcess]:
    """Run the servers during the block.

    :param popped: by topic, the group that 5.x brokers tell to pop it
    """
    command = [
        sys.executable,
        "-m",
        "tests.soak.servers",
        backend,
        *map(json.dumps, (topics, popped)),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield ServerProcess(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()  # the process ends at the end of its input
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def serve(backend: str, topics: list[str], popped: dict[str, str]) -> None:
    """Start a cluster, and restart brokers by their numbers on standard input, to its end."""
    with Cluster.start(
        "5.5.0", brokers=BROKERS, backend=backend, broker_properties=PROPERTIES
    ) as cluster:
        for topic in topics:
            cluster.create_topic(topic, queues=QUEUES)
        for topic, group in popped.items():
            prescribe_popping(cluster, topic, group)
        _tell(cluster.namesrv)
        for line in sys.stdin:
            broker = cluster.brokers[int(line)]
            broker.kill()
            time.sleep(DOWN_SECONDS)
            broker.start()
            _tell("restarted")


def prescribe_popping(cluster: Cluster, topic: str, group: str) -> None:
    """Make brokers tell the push consumers of *group* to pop *topic*."""
    wish = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
    for broker in cluster.brokers:
        body = json.dumps(wish).encode()
        response = probe.request(broker.address, SET_MESSAGE_REQUEST_MODE, None, body)
        if response.code != 0:
            raise RuntimeError(f"{broker.address} does not pop: {response.code}")


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
