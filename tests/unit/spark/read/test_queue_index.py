"""Queue index: reads include all messages stored before, though brokers index them later."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import anyio
import msgspec
import pytest

from rocketmq_aio.embedded.connection import ServerConnection
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.spark.pipelines.sending import indexed_end_offsets
from rocketmq_aio.spark.read import queue_index
from rocketmq_aio.spark.read.start_end import resolve_ranges
from tests.fakes.cluster import FakeCluster
from tests.unit.spark.driving import START, TOPIC, Driver, driving, put, queue

REFUSED = Response(ResponseCode.NO_PERMISSION, remark="Authorization failed")


def runtime(end: int, behind: int) -> Response:
    table = {"commitLogMaxOffset": str(end), "dispatchBehindBytes": str(behind)}
    return Response(body=msgspec.json.encode({"table": table}))


def indexing(cluster: FakeCluster, end: int, behind: int) -> Callable[..., Response]:
    """Report an index that is *behind*, then index one message."""

    def answer(_command: Command, _connection: ServerConnection) -> Response:
        put(cluster.broker, 1)
        return runtime(end, behind)

    return answer


async def planned_end(driver: Driver) -> int:
    return {each.queue: each.end for each in await resolve_ranges(driver.metadata, driver.options)}[
        queue(0)
    ]


async def test_a_batch_read_includes_all_messages_stored_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False) as driver,
    ):
        for end, behind in ((1000, 300), (1500, 600), (1600, 600), (9999, 9)):
            cluster.faults.handle(
                RequestCode.GET_BROKER_RUNTIME_INFO, indexing(cluster, end, behind)
            )

        # Messages stored later are not waited for: 1600 - 600 is where the log ended at first.
        with caplog.at_level(logging.WARNING, logger="rocketmq_aio"):
            assert await planned_end(driver) == 3
        (warning,) = [each for each in caplog.messages if "waiting_for_index" in each]
        assert "broker-a" in warning
        assert "behind_bytes=300" in warning


async def test_available_now_includes_all_messages_stored_before_it() -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, startingOffsets="earliest") as driver,
    ):
        for behind in (1, 0):
            cluster.faults.handle(
                RequestCode.GET_BROKER_RUNTIME_INFO, indexing(cluster, 1000, behind)
            )
        await driver.batches.fix_target()

        end = await driver.end_after(START)

        assert driver.ranges(START, end) == {queue(0): (0, 2)}


async def test_an_index_that_is_complete_is_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False) as driver,
    ):
        cluster.faults.handle(RequestCode.GET_BROKER_RUNTIME_INFO, runtime(1000, 0), times=None)

        await planned_end(driver)

        assert len(cluster.broker.requests_of(RequestCode.GET_BROKER_RUNTIME_INFO)) == 1
        assert "waiting_for_index" not in caplog.text


async def test_the_wait_for_the_index_ends_when_a_truncated_log_is_indexed() -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False) as driver,
    ):
        for end, behind in ((1000, 300), (200, 0)):
            cluster.faults.handle(
                RequestCode.GET_BROKER_RUNTIME_INFO, indexing(cluster, end, behind)
            )

        assert await planned_end(driver) == 2


async def test_pauses_of_the_wait_double_up_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def log(*_: object) -> tuple[int, int]:
        return 1000, 0 if len(pauses) == 7 else 300

    monkeypatch.setattr(queue_index, "_log", log)
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        monkeypatch.setattr(anyio, "sleep", sleep)
        await queue_index._wait(driver.instance, "broker-a")

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


async def test_a_broker_without_a_master_is_not_waited_for() -> None:
    async with FakeCluster(topics={TOPIC: 1}) as cluster, driving(cluster) as driver:
        await queue_index.wait_indexed(driver.instance, [queue(0, "nowhere")])

        assert not cluster.broker.requests_of(RequestCode.GET_BROKER_RUNTIME_INFO)


async def test_a_read_with_fixed_ends_does_not_wait_for_the_index() -> None:
    ends = json.dumps({TOPIC: {"broker-a": {"0": 2}}})
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False, endingOffsets=ends) as driver,
    ):
        put(cluster.broker, 2)

        assert await planned_end(driver) == 2
        assert not cluster.broker.requests_of(RequestCode.GET_BROKER_RUNTIME_INFO)


@pytest.mark.parametrize("answer", [REFUSED, Response(body=b'{"table": {}}')])
async def test_a_broker_without_index_state_is_not_waited_for(
    answer: Response, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False) as driver,
    ):
        put(cluster.broker, 2)
        cluster.faults.handle(RequestCode.GET_BROKER_RUNTIME_INFO, answer, times=None)

        with caplog.at_level(logging.INFO, logger="rocketmq_aio"):
            assert await planned_end(driver) == 2
        assert any("index_unknown" in each and "broker-a" in each for each in caplog.messages)


async def test_the_wait_for_the_index_is_bounded_and_its_timeout_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_index, "WAIT_SECONDS", 0.0)
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False) as driver,
    ):
        put(cluster.broker, 2)
        cluster.faults.handle(RequestCode.GET_BROKER_RUNTIME_INFO, runtime(1000, 300), times=None)

        with caplog.at_level(logging.WARNING, logger="rocketmq_aio"):
            assert await planned_end(driver) == 2
        (warning,) = [each for each in caplog.messages if "index_behind" in each]
        assert "broker-a" in warning
        assert "behind_bytes=300" in warning


async def test_the_growth_of_topics_counts_all_messages_stored_before() -> None:
    async with (
        FakeCluster(topics={TOPIC: 1}) as cluster,
        driving(cluster, streaming=False) as driver,
    ):
        for behind in (300, 0):
            cluster.faults.handle(
                RequestCode.GET_BROKER_RUNTIME_INFO, indexing(cluster, 1000, behind)
            )

        with anyio.fail_after(60):
            found = await indexed_end_offsets(driver.instance, driver.consumer, (TOPIC,))

        assert found == {queue(0): 2}
