"""PushConsumer: requests of administrators, seek, running info and statistics."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest

from rocketmq_aio.consumer.push.handlers import BatchContext, RetryLater, SuspendQueue
from rocketmq_aio.embedded.broker.store import StoredMessage
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import RETRY_TOPIC, encode_properties
from rocketmq_aio.protocol.bodies import ConsumeDirectlyResult
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.from_broker import ConsumeMessageDirectly
from tests.fakes.cluster import FakeCluster
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC, committed, numbers, put
from tests.unit.consumer.parts import queue
from tests.unit.consumer.pushing import RETRIES, Notes, pushing
from tests.unit.consumer.worker_env import Gate
from tests.unit.remoting.until import until


async def tried(cluster: FakeCluster, stored: StoredMessage) -> ConsumeDirectlyResult:
    """Let the broker hand *stored* to the consumer, and return its response."""
    header = ConsumeMessageDirectly(consumer_group=GROUP, broker_name="broker-a")
    reply = await cluster.broker.push(header, body=stored.record)
    assert reply is not None
    assert reply.code == 0, reply.remark
    return read_body(reply.body, ConsumeDirectlyResult)


def only(cluster: FakeCluster, topic: str = TOPIC) -> StoredMessage:
    (stored,) = cluster.broker.messages(topic)
    return stored


def raising(error: BaseException) -> Any:  # noqa: ANN401 - a handler
    def react(_: MessageExt) -> None:
        raise error

    return Notes(react)


@pytest.mark.parametrize("orderly", [False, True])
async def test_direct_consumption_ignores_subscriptions(
    cluster: FakeCluster, orderly: bool
) -> None:
    put(cluster, "a", tag="other")
    handled = Notes()
    async with pushing(
        cluster, handled, selector="mine", arguments={"orderly": orderly}
    ) as consumer:
        result = await tried(cluster, only(cluster))
        assert (await consumer._engine.consumed_offsets(TOPIC))[queue()] in (0, 1)

    assert (result.consume_result, result.order) == ("CR_SUCCESS", orderly)
    assert handled.bodies() == ["a"]


@pytest.mark.parametrize(
    ("error", "outcome", "remark"),
    [
        (ValueError("bad"), "CR_THROW_EXCEPTION", "ValueError('bad')"),
        (
            asyncio.CancelledError(),
            "CR_THROW_EXCEPTION",
            "RuntimeError('the function raised CancelledError')",
        ),
        (
            GeneratorExit(),
            "CR_THROW_EXCEPTION",
            "RuntimeError('the function raised GeneratorExit')",
        ),
        (RetryLater(3), "CR_LATER", "try again with delay level 3"),
        (SuspendQueue(5), "CR_LATER", "suspend the queue for 5 s"),
    ],
)
async def test_direct_consumption_returns_the_error_of_the_handler(
    cluster: FakeCluster, error: BaseException, outcome: str, remark: str
) -> None:
    async with pushing(cluster, raising(error)) as consumer:
        consumer.suspend()  # so that the message is not consumed besides
        put(cluster, "a")
        # More often than there are workers for requests of brokers: none may be lost.
        results = [await tried(cluster, only(cluster)) for _ in range(5)]

    assert {(each.consume_result, each.remark) for each in results} == {(outcome, remark)}


async def test_direct_consumption_accepts_returned_answers(cluster: FakeCluster) -> None:
    async def handle(_: MessageExt) -> RetryLater:
        return RetryLater(3)

    async with pushing(cluster, handle) as consumer:
        consumer.suspend()
        put(cluster, "a")
        result = await tried(cluster, only(cluster))

    assert result.consume_result == "CR_LATER"


async def test_direct_consumption_reads_no_attribute_of_other_results(cluster: FakeCluster) -> None:
    class Lazy:
        def __getattribute__(self, name: str) -> object:
            raise LookupError(name)

    async def handle(_: MessageExt) -> Lazy:
        return Lazy()

    async with pushing(cluster, handle) as consumer:
        consumer.suspend()
        put(cluster, "a")
        result = await tried(cluster, only(cluster))

    assert result.consume_result == "CR_SUCCESS"


@pytest.mark.parametrize(
    ("ack_index", "outcome"),
    [(None, "CR_SUCCESS"), (0, "CR_SUCCESS"), (-1, "CR_LATER"), ("x", "CR_THROW_EXCEPTION")],
)
async def test_direct_consumption_follows_the_batch_context(
    cluster: FakeCluster,
    ack_index: Any,  # noqa: ANN401 - what a handler may set
    outcome: str,
) -> None:
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.ack_index = ack_index

    async with pushing(cluster, arguments={"on_batch": handle}) as consumer:
        consumer.suspend()
        put(cluster, "a")
        result = await tried(cluster, only(cluster))

    assert result.consume_result == outcome


async def test_direct_consumption_returns_the_error_of_a_batch_with_a_delay_level(
    cluster: FakeCluster,
) -> None:
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.delay_level = 3
        raise ValueError("bad")

    async with pushing(cluster, arguments={"on_batch": handle}) as consumer:
        consumer.suspend()
        put(cluster, "a")
        result = await tried(cluster, only(cluster))

    assert (result.consume_result, result.remark) == ("CR_THROW_EXCEPTION", "ValueError('bad')")


async def test_direct_consumption_restores_the_original_topic(cluster: FakeCluster) -> None:
    handled = Notes()
    async with pushing(cluster, handled) as consumer:
        consumer.suspend()
        properties = encode_properties({RETRY_TOPIC: TOPIC})
        cluster.broker.put(RETRIES, b"again", properties=properties)
        await tried(cluster, only(cluster, RETRIES))

    (message,) = handled.seen
    assert (message.topic, message.queue.topic) == (TOPIC, RETRIES)


async def test_direct_consumption_decodes_the_value(cluster: FakeCluster) -> None:
    values: list[object] = []

    async def handle(message: MessageExt) -> None:
        values.append(message.value)

    async with pushing(cluster, handle, codec=JSONCodec(int)) as consumer:
        consumer.suspend()
        put(cluster, "1")
        result = await tried(cluster, only(cluster))
        put(cluster, "one", queue_id=1)
        (bad,) = cluster.broker.messages(TOPIC, 1)
        refused = await tried(cluster, bad)

    assert values == [1]
    assert result.consume_result == "CR_SUCCESS"
    assert refused.consume_result == "CR_THROW_EXCEPTION"


async def test_offsets_are_reset_while_handlers_run(cluster: FakeCluster) -> None:
    put(cluster, *numbers(10))
    gate = Gate(0)
    async with pushing(cluster, gate, commit_interval_seconds=0.01) as consumer:
        await gate.reached.wait()
        await until(lambda: len(gate.seen) == 10, "all but the first to be done")
        await consumer._engine.reset_offsets(TOPIC, {queue(): 5, queue(9): 3})
        assert cluster.broker.committed(GROUP, TOPIC, 0) == 5
        gate.open.set()
        await committed(cluster, {0: 10})

    assert sorted(gate.seen[10:]) == [5, 6, 7, 8, 9]
    assert cluster.broker.committed(GROUP, TOPIC, 9) is None


async def test_failure_from_before_a_reset_is_not_sent_back(cluster: FakeCluster) -> None:
    put(cluster, *numbers(3))
    gate = Gate(0, error=ValueError("bad"))
    async with pushing(cluster, gate, commit_interval_seconds=0.01) as consumer:
        await gate.reached.wait()
        await consumer._engine.reset_offsets(TOPIC, {queue(): 2})
        gate.open.set()
        await committed(cluster, {0: 3})
        await until(lambda: not consumer._engine.table[queue()].has_in_flight, "the handler's end")

    assert cluster.broker.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK) == []


async def test_seek_continues_at_the_given_offset(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    handled = Notes()
    async with pushing(cluster, handled) as consumer:
        await handled.have(5)
        await consumer.seek(queue(), 3)
        await handled.have(7)

        assert cluster.broker.committed(GROUP, TOPIC, 0) == 3

    assert handled.bodies() == [*numbers(5), "3", "4"]


@pytest.mark.parametrize("offset", [6, 2**62])
async def test_seek_beyond_the_queue_is_rejected(
    cluster: FakeCluster,
    offset: Any,  # noqa: ANN401 - that is what is tested
) -> None:
    put(cluster, *numbers(5))
    async with pushing(cluster, Notes()) as consumer:
        with pytest.raises(ConfigError) as caught:
            await consumer.seek(queue(), offset)

    assert (caught.value.setting, caught.value.value) == ("offset", offset)


async def test_consumed_offsets_stop_at_the_first_unsettled_message(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    put(cluster, *numbers(2), queue_id=1)
    go = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        if (message.queue.queue_id, message.queue_offset) == (0, 2):
            await go.wait()

    async with pushing(cluster, handle) as consumer:
        offsets: dict[int, int] = {}

        async def read() -> None:
            offsets.update(
                {q.queue_id: o for q, o in (await consumer._engine.consumed_offsets(TOPIC)).items()}
            )

        async with asyncio.timeout(15):
            while offsets != {0: 2, 1: 2, 2: 0, 3: 0}:
                await read()
                await asyncio.sleep(0.002)
        assert await consumer._engine.consumed_offsets("others") == {}
        go.set()


async def test_running_info_shows_queues_and_settings(cluster: FakeCluster) -> None:
    put(cluster, *numbers(5))
    go = asyncio.Event()

    async def handle(_: MessageExt) -> None:
        await go.wait()

    async with pushing(cluster, handle, concurrency=2, selector="*") as consumer:
        held = consumer._engine.table[queue()]
        await until(lambda: held.active == 2, "two handlers")
        consumer.set_concurrency(3)
        info = consumer._engine.running_info()
        go.set()

    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
    assert {each.topic for each in info.subscription_set} == {TOPIC, RETRIES}
    assert b'"cachedMsgCount":5' in bytes(info.mq_table)


async def test_statistics_count_handler_calls(cluster: FakeCluster) -> None:
    began = monotonic()
    put(cluster, *numbers(10))

    def react(message: MessageExt) -> None:
        if message.queue_offset < 4:
            raise ValueError("bad")

    handled = Notes(react)
    async with pushing(cluster, handled, commit_interval_seconds=0.01) as consumer:
        await committed(cluster, {0: 10})
        await until(lambda: consumer.statistics().get(TOPIC) and _counted(consumer) == 10)
        statistics = consumer.statistics()[TOPIC]

    assert statistics.failed_last_hour == 4
    assert statistics.consumed_per_second == pytest.approx(statistics.failed_per_second * 6 / 4)
    assert statistics.pulled_per_second > 0
    assert 0 < statistics.consume_seconds < monotonic() - began  # seconds, of one handler


def _counted(consumer: Any) -> int:  # noqa: ANN401
    counts = consumer._engine.statistics._topics[TOPIC].sums
    return int(counts.ok + counts.failed)
