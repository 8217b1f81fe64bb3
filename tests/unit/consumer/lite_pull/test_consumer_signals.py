"""LitePullConsumer: programs with ``async for`` that a signal stops, as in the guide."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, put

PROGRAM = """
import asyncio, contextlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
from rocketmq_aio import LitePullConfig, LitePullConsumer

async def book(message):
    print(message.body.decode(), flush=True)
    if message.body == b"2":
        await asyncio.sleep(60)

async def main():
    stop = asyncio.current_task().cancel
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer("billing", namesrv=sys.argv[1], config=config) as consumer:
        await consumer.subscribe("orders")
        async for message in consumer:
            await book(message)

with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
    asyncio.run(main())
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stopped_loop_commits_what_is_done_and_leaves_the_group(
    cluster: FakeCluster, number: signal.Signals
) -> None:
    put(cluster, "1", "2", "3")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, cluster.namesrv), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b"1\n"
            assert await process.stdout.readline() == b"2\n"
            process.send_signal(number)
            rest = await process.stdout.read()
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()

    assert (rest, code) == (b"ended\n", 0)
    assert cluster.broker.committed(GROUP, TOPIC, 0) == 1  # "2" was not done, and comes again
    assert GROUP not in cluster.broker.members.groups
