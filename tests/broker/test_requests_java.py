"""Requests and replies between this client and the official Java client, in both directions."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rocketmq_aio import Message, Producer
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.jars import fetch_jars
from tests.broker.test_requests_replies import answering

SOURCE = Path(__file__).parent / "java" / "RequestReply.java"
SECONDS = 90.0


@asynccontextmanager
async def java(cluster: Cluster, role: str, topic: str, group: str) -> AsyncIterator[Process]:
    """Run the official client in *role*; its output can be read."""
    jars = await asyncio.to_thread(fetch_jars, cluster.version)
    command = ("java", "-Xmx128m", "-cp", f"{jars}{os.sep}*", str(SOURCE))
    arguments = (role, cluster.namesrv, topic, group)
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=PIPE, stderr=DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_java_answers_what_this_client_asks(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with (
        java(rocketmq_cluster, "answer", rocketmq_topic, rocketmq_group) as process,
        Producer(f"{rocketmq_group}-asks", namesrv=rocketmq_cluster.namesrv) as producer,
    ):
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            assert await process.stdout.readline() == b"READY\n"
        requests = [Message(rocketmq_topic, b"python%d" % n) for n in range(20)]
        replies = await asyncio.gather(*(producer.request(each, 60) for each in requests))

    assert [each.body for each in replies] == [b"PYTHON%d" % n for n in range(20)]


async def test_this_client_answers_what_java_asks_slowly_too(
    rocketmq_cluster: Cluster, rocketmq_topic: str, rocketmq_group: str
) -> None:
    async with (
        answering(rocketmq_cluster, rocketmq_group, rocketmq_topic, 0.5),
        java(rocketmq_cluster, "ask", rocketmq_topic, rocketmq_group) as process,
    ):
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()

    assert output.decode().split("\n")[:-1] == [f"REPLY JAVA{n}" for n in range(5)]
