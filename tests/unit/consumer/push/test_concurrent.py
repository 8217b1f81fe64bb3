"""ConcurrentService: results of handlers, send-back, turns of queues."""

from __future__ import annotations

from typing import Any

import pytest

from rocketmq_aio.consumer.common.events import MessageDeadLettered, MessageDropped
from rocketmq_aio.consumer.push import concurrent
from rocketmq_aio.consumer.push.handlers import BatchContext, RetryLater
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import offsets
from tests.unit.consumer.worker_env import Gate, WorkerEnv
from tests.unit.remoting.until import until


async def test_message_is_settled_when_its_handler_returns() -> None:
    seen: list[int] = []

    async def handle(message: MessageExt) -> None:
        seen.append(message.queue_offset)

    async with WorkerEnv(handle) as env:
        env.pull(*range(100))
        await env.until_committable(100)

    assert sorted(seen) == list(range(100))
    assert env.send_back.sent == []
    assert env.statistics.snapshot("orders").consumed_per_second > 0


@pytest.mark.parametrize(
    ("error", "level"),
    [(ValueError("bad"), 0), (RetryLater(), 0), (RetryLater(5), 5), (RetryLater(-1), -1)],
    ids=repr,
)
async def test_failed_message_is_sent_back_and_settled(error: Exception, level: int) -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 1:
            raise error

    async with WorkerEnv(handle) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert env.send_back.sent == [(1, level)]
    dead = [each for each in env.events if isinstance(each, MessageDeadLettered)]
    assert len(dead) == (level == -1)


@pytest.mark.parametrize("kind", ["async", "plain", "batch"])
async def test_returned_answer_has_the_effect_of_a_raised_one(kind: str) -> None:
    async def handle(_: object, __: object = None) -> object:
        return RetryLater(7)

    handlers: dict[str, dict[str, Any]] = {
        "async": {"on_message": handle},
        "plain": {"on_message": lambda _: RetryLater(7)},
        "batch": {"on_batch": handle},
    }
    async with WorkerEnv(**handlers[kind]) as env:
        env.pull(0)
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 7)]


async def test_only_the_first_failure_is_logged_with_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(message: MessageExt) -> None:
        if message.queue_offset == 0:
            raise ValueError("bad")
        raise RetryLater(1)

    with caplog.at_level("INFO", "rocketmq_aio"):
        async with WorkerEnv(handle) as env:
            env.pull(0, 1)
            await env.until_committable(2)

    failures = [each for each in caplog.records if "message_failed" in each.getMessage()]
    assert [each.levelname for each in failures] == ["WARNING", "INFO"]
    assert [each.exc_info is not None for each in failures] == [True, False]


async def test_last_retry_publishes_message_dead_lettered() -> None:
    async def handle(_: MessageExt) -> None:
        raise ValueError("bad")

    async with WorkerEnv(handle, max_reconsume_times=0) as env:
        env.pull(0)
        await env.until_committable(1)

    (event,) = env.events
    assert isinstance(event, MessageDeadLettered)
    assert "bad" in event.reason


async def test_failed_send_back_keeps_the_offset_and_retries_locally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent, "LOCAL_RETRY_SECONDS", 0.001)
    tries: list[int] = []

    async def handle(message: MessageExt) -> None:
        tries.append(message.local_retries)
        if len(tries) < 3:
            raise ValueError("bad")

    async with WorkerEnv(handle) as env:
        env.send_back.down = 2
        env.pull(0)
        await env.until_committable(1)

    assert tries == [0, 1, 2]
    assert env.send_back.sent == []


async def test_broadcasting_drops_a_failed_message() -> None:
    async def handle(_: MessageExt) -> None:
        raise ValueError("bad")

    async with WorkerEnv(handle, broadcasting=True) as env:
        env.pull(0)
        await env.until_committable(1)

    (event,) = env.events
    assert isinstance(event, MessageDropped)


@pytest.mark.parametrize(
    ("ack_index", "back"),
    [(None, []), (2, [3, 4]), (-1, [0, 1, 2, 3, 4]), (4, []), (99, []), (-7, [0, 1, 2, 3, 4])],
)
async def test_ack_index_acknowledges_part_of_a_batch(
    ack_index: int | None, back: list[int]
) -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        context.ack_index = ack_index
        context.delay_level = 3

    async with WorkerEnv(on_batch=handle, consume_batch_size=5) as env:
        env.pull(*range(5))
        await env.until_committable(5)

    assert batches == [[0, 1, 2, 3, 4]]
    assert sorted(env.send_back.sent) == [(offset, 3) for offset in back]


@pytest.mark.parametrize("is_plain", [False, True])
async def test_delay_level_applies_to_a_batch_whose_handler_raises(is_plain: bool) -> None:
    def fail(_: list[MessageExt], context: BatchContext) -> None:
        context.ack_index = 0
        context.delay_level = 3
        raise ValueError("bad")

    async def fail_async(messages: list[MessageExt], context: BatchContext) -> None:
        fail(messages, context)

    handler = fail if is_plain else fail_async
    async with WorkerEnv(on_batch=handler, consume_batch_size=2) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert sorted(env.send_back.sent) == [(0, 3), (1, 3)]


@pytest.mark.parametrize("nonsense", ["2", 1.5, True])
async def test_invalid_ack_index_fails_the_whole_batch(nonsense: Any) -> None:  # noqa: ANN401
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.ack_index = nonsense

    async with WorkerEnv(on_batch=handle, consume_batch_size=2) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert sorted(env.send_back.sent) == [(0, 0), (1, 0)]


async def test_batch_holds_messages_of_one_queue_only() -> None:
    batches: list[set[int]] = []

    async def handle(messages: list[MessageExt], _: BatchContext) -> None:
        batches.append({each.queue.queue_id for each in messages})

    async with WorkerEnv(on_batch=handle, consume_batch_size=10) as env:
        env.pull(0, 1, queue_id=0)
        env.pull(0, 1, queue_id=1)
        await env.until_committable(2, 0)
        await env.until_committable(2, 1)

    assert all(len(queues) == 1 for queues in batches)


async def test_message_dropped_by_a_reset_is_not_sent_back() -> None:
    gate = Gate(error=ValueError("bad"))
    async with WorkerEnv(gate) as env:
        assigned = env.pull(0)
        await gate.reached.wait()
        assigned.restart(10)
        gate.open.set()
        await until(lambda: not assigned.has_in_flight, "the handler's end")

    assert env.send_back.sent == []
    assert assigned.committable == 10


@pytest.mark.parametrize("is_plain", [False, True])
async def test_batch_handler_may_use_up_its_list(is_plain: bool) -> None:
    seen: list[int] = []

    def drain(messages: list[MessageExt], _: BatchContext) -> None:
        while messages:
            seen.append(messages.pop().queue_offset)

    async def drain_async(messages: list[MessageExt], context: BatchContext) -> None:
        drain(messages, context)

    handler = drain if is_plain else drain_async
    async with WorkerEnv(on_batch=handler, consume_batch_size=4) as env:
        assigned = env.pull(*range(8))
        await env.until_committable(8)

        assert sorted(seen) == list(range(8))
        assert not assigned.has_in_flight


async def test_ack_index_counts_in_the_order_of_delivery() -> None:
    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        messages.reverse()
        context.ack_index = 0

    async with WorkerEnv(on_batch=handle, consume_batch_size=3) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert [offset for offset, _ in env.send_back.sent] == [1, 2]


class OutOfStock(RetryLater):
    """A retry of an application, which does not call the constructor of its base."""

    def __init__(self, item: str) -> None:
        Exception.__init__(self, item)


async def test_subclass_without_delay_level_lets_the_broker_choose() -> None:
    async def handle(_: MessageExt) -> None:
        raise OutOfStock("book")

    async with WorkerEnv(handle) as env:
        env.pull(0)
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 0)]


async def test_invalid_delay_level_of_a_retry_is_a_failure_of_the_handler() -> None:
    async def handle(_: MessageExt) -> None:
        later = RetryLater(1)
        later.delay_level = -2
        raise later

    async with WorkerEnv(handle) as env:
        env.pull(0)
        await env.until_committable(1)

    assert env.send_back.sent == [(0, 0)]
