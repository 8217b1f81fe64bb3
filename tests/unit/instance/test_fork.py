"""Forked processes: identity, and what a child may do with its parent's clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import NotRunningError
from rocketmq_aio.instance.client_instance import MQClientInstance
from tests.fakes.cluster import FakeCluster
from tests.unit.instance.forking import WORKERS
from tests.unit.remoting.until import until

FORKED = "was started before this process was forked"


@asynccontextmanager
async def program(case: str, cluster: FakeCluster) -> AsyncIterator[Process]:
    """Run a program of `forking`; it ends with the block, by the end of its input."""
    loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    command = ("-W", "error", "-m", "tests.unit.instance.forking", case, loop, cluster.namesrv)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=PIPE, stdout=PIPE, start_new_session=True
    )
    try:
        yield process
        process.stdin.close()  # type: ignore[union-attr]  # it is a pipe
        async with asyncio.timeout(10):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # its children, too
            await process.wait()


async def said(process: Process) -> dict[str, Any]:
    async with asyncio.timeout(10):
        line = await process.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
    return dict(json.loads(line))


async def test_objects_made_before_a_fork_get_an_identity_in_each_process() -> None:
    async with FakeCluster(topics={"orders": 4}) as cluster, program("preload", cluster) as process:
        workers = [await said(process) for _ in range(WORKERS)]
        groups = cluster.broker.members.groups
        await until(lambda: len(set(groups["billing"].members.values())) == WORKERS)

        assert len({each["client"] for each in workers}) == WORKERS
        assert len({each["consumer"] for each in workers}) == WORKERS
        origins = {each["message"][8:20] for each in workers}  # process id and random number
        assert len(origins) == WORKERS
        assert len({each["message"][12:20] for each in workers}) == WORKERS


async def test_started_clients_raise_in_a_forked_child() -> None:
    async with FakeCluster(topics={"orders": 4}) as cluster:
        async with program("started", cluster) as process:
            *refusals, last = (await said(process))["refusals"]
            assert all(FORKED in each and "NotRunningError" in each for each in refusals), refusals
            assert "forked" in last
            assert await said(process) == {"closed": True}
            assert await said(process) == {"parent": True}

        assert sorted(each.body for each in cluster.broker.messages("orders")) == [
            b"child",
            b"hello",
            b"hello",
        ]


async def test_a_child_forked_from_a_running_loop_sends_nothing_over_its_parents_socket() -> None:
    async with FakeCluster(topics={"orders": 4}) as cluster:
        async with program("same_loop", cluster) as process:
            assert FORKED in (await said(process))["refusal"]

        assert [each.body for each in cluster.broker.messages("orders")] == [b"hello", b"hello"]
        assert len(cluster.broker.connects) == 1


async def test_writes_of_a_forked_child_do_not_reach_the_parents_socket() -> None:
    async with FakeCluster(topics={"orders": 4}) as cluster:
        async with program("writing", cluster) as process:
            assert await said(process) == {"written": 2}
            assert await said(process) == {"connected": [None, None]}

        assert [each.body for each in cluster.broker.messages("orders")] == [b"hello"] * 4
        assert len(cluster.broker.connects) == 1


async def test_the_client_id_is_made_by_start() -> None:
    async with FakeCluster() as cluster:
        client = MQClientInstance(ClientConfig(namesrv=cluster.namesrv))
        with pytest.raises(NotRunningError, match="start"):
            _ = client.client_id
        async with client:
            made = client.client_id

        assert client.client_id == made
