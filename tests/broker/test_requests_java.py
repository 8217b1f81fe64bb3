"""Request-reply between this client and the Java client, in both directions."""

from __future__ import annotations

import asyncio
import os
import shlex
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rocketmq_aio import ClientConfig, Message, Producer
from rocketmq_aio.testing import Cluster
from rocketmq_aio.testing.jars import fetch_jars
from rocketmq_aio.testing.jvm import SMALL
from tests.broker.test_requests_replies import answering, namespaced

SOURCE = Path(__file__).parent / "java" / "RequestReply.java"
SECONDS = 110.0


@asynccontextmanager
async def java(
    cluster: Cluster, role: str, topic: str, group: str, *namespace: str
) -> AsyncIterator[Process]:
    """Run the official client in *role*; its output can be read."""
    jars = await asyncio.to_thread(fetch_jars, cluster.version)
    options = shlex.split(os.environ.get("JAVA_OPT_EXT", ""))
    command = ("java", *SMALL, *options, "-cp", f"{jars}{os.sep}*", str(SOURCE))
    arguments = (role, cluster.namesrv, topic, group, *namespace)
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=PIPE, stderr=DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.fixture(params=[None, "shop"], ids=["plain", "namespaced"])
async def namespace(
    request: pytest.FixtureRequest, rocketmq_cluster: Cluster, topic: str, group: str
) -> list[str]:
    """The namespace of both clients, or none."""
    if request.param is None:
        return []
    await namespaced(rocketmq_cluster, request.param, topic, group)
    return [request.param]


def client(cluster: Cluster, namespace: list[str]) -> ClientConfig:
    return ClientConfig(namesrv=cluster.namesrv, namespace=namespace[0] if namespace else None)


async def test_java_replies_to_requests_of_this_client(
    rocketmq_cluster: Cluster, topic: str, group: str, namespace: list[str]
) -> None:
    async with (
        java(rocketmq_cluster, "answer", topic, group, *namespace) as process,
        Producer(f"{group}-asks", client=client(rocketmq_cluster, namespace)) as producer,
    ):
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            assert await process.stdout.readline() == b"READY\n"
        requests = [Message(topic, b"python%d" % n) for n in range(20)]
        replies = await asyncio.gather(*(producer.request(each, 60) for each in requests))

    assert [each.body for each in replies] == [b"PYTHON%d" % n for n in range(20)]


async def test_this_client_replies_to_requests_of_java(
    rocketmq_cluster: Cluster, topic: str, group: str, namespace: list[str]
) -> None:
    async with (
        answering(client(rocketmq_cluster, namespace), group, topic, 0.5),
        java(rocketmq_cluster, "ask", topic, group, *namespace) as process,
    ):
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()

    assert output.decode().split("\n")[:-1] == [f"REPLY JAVA{n}" for n in range(5)]
