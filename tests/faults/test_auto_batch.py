"""Batched sends under faults: confirmed messages are stored, once per attempt."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.errors import SendError
from rocketmq_aio.model.message import Message
from rocketmq_aio.protocol.codes import RequestCode
from tests.faults.test_producer import BRIEF, HALF_FOR_ANOTHER, Run, sending
from tests.history import Outcome
from tests.unit.remoting.until import until

BATCH = RequestCode.SEND_BATCH_MESSAGE
BATCHED = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0.002))


def batches(run: Run) -> int:
    return sum(len(broker.requests_of(BATCH)) for broker in run.cluster.brokers)


@pytest.mark.parametrize("reset", [False, True])
async def test_cut_connections_fail_no_send(reset: bool) -> None:
    async with sending(brokers=2, producer=BATCHED) as run:
        for _ in range(10):
            for proxy in run.proxies:
                proxy.cut(reset=reset)
            await run.until_ok(20)

        assert run.count(Outcome.FAIL) == 0
        assert batches(run) > 0


async def test_lost_batch_responses_make_copies_with_the_same_ids() -> None:
    async with sending(brokers=2, producer=BATCHED, max_seconds=BRIEF) as run:
        for broker in run.cluster.brokers:
            broker.faults.drop(BATCH, broker=broker.name, times=2)
        await run.until_ok(100)

        assert run.count(Outcome.FAIL) == 0


async def test_duplicate_batch_responses_count_once() -> None:
    async with sending(producer=BATCHED) as run:
        run.cluster.faults.duplicate(BATCH, times=20)
        await run.until_ok(100)

        assert run.count(Outcome.OK) == len(run.ended())


async def test_truncated_batch_responses_do_not_stop_later_sends() -> None:
    async with sending(producer=BATCHED, max_seconds=BRIEF) as run:
        run.cluster.faults.truncate(BATCH, close=False)
        await run.until_ok(100)


async def test_busy_brokers_get_batches_after_a_pause() -> None:
    async with sending(brokers=2, producer=BATCHED) as run:
        for broker in run.cluster.brokers:
            broker.faults.refuse(BATCH, broker=broker.name)
        await run.until_ok(100)

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_a_hanging_broker_is_excluded_until_it_responds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "rocketmq_aio.producer.fault_strategy")
    async with sending(brokers=2, producer=BATCHED, max_seconds=HALF_FOR_ANOTHER) as run:
        hanging = run.proxies[0]
        hanging.stall()
        await until(lambda: "broker_isolated" in caplog.text, "isolation")
        stored = [len(broker.messages("orders")) for broker in run.cluster.brokers]
        await run.until_ok(200)
        meanwhile = [len(broker.messages("orders")) for broker in run.cluster.brokers]
        assert meanwhile[0] == stored[0]
        assert meanwhile[1] > stored[1]
        hanging.flow()
        await until(lambda: "broker_restored" in caplog.text, "the end of it")
        await until(
            lambda: len(run.cluster.brokers[0].messages("orders")) > meanwhile[0], "its use"
        )

        assert run.count(Outcome.FAIL) == run.count(Outcome.UNKNOWN) == 0


async def test_cancelled_callers_do_not_affect_others() -> None:
    async with sending(brokers=2, producer=BATCHED) as run:
        for number in range(100):
            leaving = [
                asyncio.create_task(run.producer.send(Message("orders", b"leaving %d" % number)))
                for _ in range(5)
            ]
            for _ in range(number % 20):
                await asyncio.sleep(0)
            for each in leaving:
                each.cancel()
            ended = await asyncio.gather(*leaving, return_exceptions=True)
            assert not any(isinstance(each, SendError) for each in ended)
        await run.until_ok(100)

        others = [each.outcome for each in run.ended() if not each.body.startswith(b"leaving")]
        assert set(others) == {Outcome.OK}
