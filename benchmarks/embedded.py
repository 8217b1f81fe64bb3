"""Sends per second of one core of the embedded broker, measured from another process.

The broker's CPU time per send decides, not the rate: the two processes may share a core.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from typing import Final

from benchmarks.machine import cpu_seconds
from rocketmq_aio import Message, Producer
from rocketmq_aio.embedded import EmbeddedCluster

TOPIC: Final = "bench"
QUEUES: Final = 16
BODY: Final = b"x" * 1024
IN_FLIGHT: Final = (64, 256)
WARMUP_SECONDS: Final = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=3)


def run(parsed: argparse.Namespace) -> None:
    """Print the figures of each window."""
    serving = [sys.executable, "-m", __name__]
    for _ in range(parsed.rounds):
        for in_flight in IN_FLIGHT:
            server = subprocess.Popen(serving, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            with server:  # it ends with its standard input
                assert server.stdout is not None
                namesrv = server.stdout.readline().decode().strip()
                figures = asyncio.run(_measure(namesrv, server.pid, in_flight, parsed.seconds))
                assert server.stdin is not None
                server.stdin.close()
            print(figures, flush=True)


async def _measure(namesrv: str, broker: int, in_flight: int, seconds: float) -> str:
    sent = 0
    async with Producer("bench", namesrv=namesrv) as producer:

        async def send() -> None:
            nonlocal sent
            while True:
                await producer.send(Message(TOPIC, BODY))
                sent += 1

        senders = [asyncio.ensure_future(send()) for _ in range(in_flight)]
        await asyncio.sleep(WARMUP_SECONDS)
        began, used, first = time.perf_counter(), cpu_seconds(broker), sent
        await asyncio.sleep(seconds)
        elapsed, used, count = time.perf_counter() - began, cpu_seconds(broker) - used, sent - first
        for sender in senders:
            sender.cancel()
        ended = await asyncio.gather(*senders, return_exceptions=True)
    failed = [error for error in ended if not isinstance(error, asyncio.CancelledError)]
    return (
        f"in flight {in_flight:3}  {count / elapsed:8,.0f} sends/s  "
        f"broker {used / count * 1e6:5.1f} us/send = {count / used:8,.0f} sends/s per core  "
        f"failed {len(failed)}"
    )


async def _serve() -> None:
    async with EmbeddedCluster(topics={TOPIC: QUEUES}) as cluster:
        print(cluster.namesrv, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(_serve())
