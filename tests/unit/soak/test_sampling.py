"""Samples: tables behind clients are found, also in private parts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from time import monotonic

import pytest

from rocketmq_aio import ClientConfig, Message, Producer
from rocketmq_aio.protocol.codes import RequestCode
from tests.fakes.cluster import FakeCluster
from tests.soak.sampling import process_figures, table_sizes
from tests.soak.servers import ROOT


async def test_tables_of_a_client_are_found() -> None:
    async with (
        FakeCluster(topics={"orders": 1}) as cluster,
        Producer("shop", client=ClientConfig(namesrv=cluster.namesrv)) as producer,
    ):
        await producer.send(Message("orders", b"x"))
        before = table_sizes([producer])
        held = cluster.faults.hold(RequestCode.SEND_MESSAGE_V2, times=None)
        sends = [asyncio.create_task(producer.send(Message("orders", b"x"))) for _ in range(3)]
        await held.wait(3)
        producer.client.replies.expect("leaked", monotonic() + 60)
        during = table_sizes([producer])
        held.release()
        await asyncio.gather(*sends)
        producer.client.replies.forget("leaked")

    assert before["Connection._pending"] < 3  # a heartbeat may be unanswered
    assert during["Connection._pending"] >= 3
    assert during["PendingReplies._pending"] == 1
    assert before["RouteTable._routes"] >= 1


async def test_process_figures_count_tasks() -> None:
    before = process_figures()
    task = asyncio.create_task(asyncio.sleep(60))

    assert process_figures()["tasks"] == before["tasks"] + 1
    assert before["RSS MiB"] > 1
    task.cancel()


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [["--restart-seconds", "60"], ["--restart-seconds", "1", "--flow", "batched"]],
    ids=["all clients", "a restart"],
)
def test_a_short_soak_loses_nothing_and_leaves_nothing_behind(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.03", "--rate", "200", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "passed" in ended.stdout
    assert (" 0 restarts" in ended.stdout) == ("batched" not in arguments)
