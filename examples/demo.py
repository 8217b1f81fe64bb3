"""Demo for `make demo`: a broker, a producer and an `async for` consumer, and their rates.

    python examples/demo.py --seconds 10 --version 5.5.0 --backend embedded

The backend `embedded` is a broker in Python, run by `rmq dev`. `jvm` and `docker` start and stop a
real one; `external` uses the one of ROCKETMQ_NAMESRV. The demo ends with an error if a
message was lost.
"""

import argparse
import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rocketmq_aio import LitePullConfig, LitePullConsumer, Message, Producer, RocketMQError
from rocketmq_aio.testing import Cluster, ClusterError

SENDERS = 64
BODY = b"x" * 1016  # after eight bytes with the number of the message: 1 KiB
STALL_TIMEOUT_SECONDS = 10.0  # without a new message, before missing ones count as lost
LINE_SECONDS = 0.5
QUEUES = 8
BACKENDS = {
    "embedded": "the embedded broker (Python, in memory, a process of its own)",
    "jvm": "a real broker (Java processes)",
    "docker": "a real broker (containers)",
    "external": "the brokers of ROCKETMQ_NAMESRV",
    "auto": "the first real broker that is possible",
}


@dataclass
class Counts:
    """Numbers of the messages that were acknowledged and received."""

    sent: set[int] = field(default_factory=set)
    received: set[int] = field(default_factory=set)
    repeated: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        return len(self.sent - self.received)

    def summary(self) -> str:
        rate = len(self.sent) / self.seconds if self.seconds else 0.0
        return (
            f"sent {len(self.sent):,}, received {len(self.received):,}, lost {self.lost},"
            f" repeated {self.repeated}, failed sends {self.failed},"
            f" {rate:,.0f} messages/s for {self.seconds:.1f} s"
        )

    def exit_code(self) -> int:
        return 1 if self.lost or not self.sent else 0


async def send(producer: Producer, topic: str, counts: Counts, seconds: float) -> None:
    """Send from many concurrent tasks, which gives the highest rate."""
    numbers = iter(range(2**63))
    started = time.monotonic()

    async def send_some() -> None:
        while time.monotonic() - started < seconds:
            number = next(numbers)
            try:
                await producer.send(Message(topic, number.to_bytes(8, "big") + BODY))
            except RocketMQError:
                counts.failed += 1
            else:
                counts.sent.add(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(SENDERS):
            tasks.create_task(send_some())
    counts.seconds = time.monotonic() - started


async def receive(consumer: LitePullConsumer, counts: Counts) -> None:
    async for message in consumer:
        number = int.from_bytes(message.body[:8], "big")
        counts.repeated += number in counts.received
        counts.received.add(number)


async def show(counts: Counts) -> None:
    """Print the progress regularly: in one line of a terminal, otherwise in separate lines."""
    end = "\r" if sys.stdout.isatty() else "\n"
    sent = received = 0
    while True:
        await asyncio.sleep(LINE_SECONDS)
        send_rate = (len(counts.sent) - sent) / LINE_SECONDS
        receive_rate = (len(counts.received) - received) / LINE_SECONDS
        sent, received = len(counts.sent), len(counts.received)
        line = f"sent {sent:>9,} ({send_rate:>7,.0f}/s)   received {received:>9,}"
        print(f"  {line} ({receive_rate:>7,.0f}/s)  ", end=end, flush=True)


async def wait_until_received(counts: Counts) -> None:
    """Return when all messages have arrived, or none has arrived for a while."""
    seen, last_new = -1, time.monotonic()
    while counts.lost and time.monotonic() - last_new < STALL_TIMEOUT_SECONDS:
        if len(counts.received) != seen:
            seen, last_new = len(counts.received), time.monotonic()
        await asyncio.sleep(0.05)


async def run(namesrv: str, topic: str, seconds: float) -> Counts:
    counts = Counts()
    config = LitePullConfig(start_from="earliest")
    async with (
        Producer("demo-producer", namesrv=namesrv) as producer,
        LitePullConsumer("demo", namesrv=namesrv, config=config) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        await consumer.subscribe(topic)
        await consumer.ready(timeout_seconds=30)
        background = [tasks.create_task(receive(consumer, counts)), tasks.create_task(show(counts))]
        await send(producer, topic, counts, seconds)
        await wait_until_received(counts)
        for task in background:
            task.cancel()
    return counts


@contextmanager
def embedded(version: str, topic: str) -> Iterator[str]:
    """Run the embedded broker in a process of its own; yield its name server."""
    options = ("--port", "0", "--version", version, "--topic", f"{topic}:{QUEUES}", "--quiet")
    command = (sys.executable, "-m", "rocketmq_aio.cli", "dev", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            found = (line for line in broker.stdout if line.startswith("name server"))
            if (line := next(found, None)) is None:
                raise ClusterError("rmq dev has ended; its error is above")
            yield line.rpartition("=")[2].strip()
        finally:
            broker.terminate()


@contextmanager
def real(version: str, topic: str, backend: str) -> Iterator[str]:
    """Run a real broker, or use that of ROCKETMQ_NAMESRV; yield its name server."""
    with Cluster.start(version, backend=backend) as cluster:
        cluster.create_topic(topic, queues=QUEUES)
        yield cluster.namesrv
        cluster.delete_topic(topic)


def main(seconds: float, version: str, backend: str) -> int:
    logging.basicConfig(format="  %(message)s", stream=sys.stdout)
    logging.getLogger("rocketmq_aio.testing").setLevel(logging.INFO)  # logs downloads
    print(f"Getting RocketMQ {version} ready: {BACKENDS[backend]} ...", flush=True)
    started, topic = time.monotonic(), f"demo-{time.time_ns()}"
    servers = embedded(version, topic) if backend == "embedded" else real(version, topic, backend)
    try:
        with servers as namesrv:
            print(f"Ready after {time.monotonic() - started:.1f} s: name server {namesrv}")
            print(f"Sending with {SENDERS} tasks, receiving with `async for`, for {seconds:g} s:")
            counts = asyncio.run(run(namesrv, topic, seconds))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{counts.summary()}")
    print(f"on {BACKENDS[backend]}; {platform()}")
    return counts.exit_code()


def platform() -> str:
    return f"Python {'.'.join(map(str, sys.version_info[:3]))}, {os.cpu_count()} processors"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--version", default="5.5.0", help="of RocketMQ, such as 4.9.7")
    parser.add_argument("--backend", choices=BACKENDS, default="embedded")
    arguments = parser.parse_args()
    try:
        sys.exit(main(arguments.seconds, arguments.version, arguments.backend))
    except KeyboardInterrupt:
        sys.exit("interrupted")
