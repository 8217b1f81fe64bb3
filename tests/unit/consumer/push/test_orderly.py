"""OrderlyService: order, retries in place, commits, dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from rocketmq_aio.consumer.common.events import MessageDeadLettered
from rocketmq_aio.consumer.push import orderly
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    RetryLater,
    SuspendQueue,
    UndecodableError,
)
from rocketmq_aio.errors import PayloadError
from rocketmq_aio.model.message import MessageExt
from tests.unit.consumer.parts import messages, offsets
from tests.unit.consumer.worker_env import FakeSendBack, Gate, WorkerEnv
from tests.unit.remoting.until import settle, until


class Watcher:
    """A handler that notes running queues and fails a set number of times per offset."""

    def __init__(self, fails: dict[int, int] | None = None, error: Exception | None = None) -> None:
        self.seen: list[tuple[int, int]] = []
        self.running: set[int] = set()
        self.shared: set[int] = set()  # queues of which two handlers ran at once
        self.fails = dict(fails or {})
        self.error = error or ValueError("bad")

    async def __call__(self, message: MessageExt) -> None:
        of = message.queue.queue_id
        self.shared |= self.running & {of}
        self.running.add(of)
        self.seen.append((of, message.queue_offset))
        await asyncio.sleep(0)
        self.running.discard(of)
        if self.fails.get(message.queue_offset):
            self.fails[message.queue_offset] -= 1
            raise self.error

    def of(self, queue_id: int) -> list[int]:
        return [offset for of, offset in self.seen if of == queue_id]


async def test_each_queue_is_handled_in_order_by_one_handler_at_a_time() -> None:
    handle = Watcher()
    async with WorkerEnv(handle, orderly=True) as env:
        for number in range(3):
            env.pull(*range(25), queue_id=number)
            env.pull(*range(25, 50), queue_id=number)  # before a worker takes the queue
        for number in range(3):
            await env.until_committable(50, number)

    assert handle.shared == set()
    assert all(handle.of(number) == list(range(50)) for number in range(3))


async def test_failed_message_is_retried_before_the_next() -> None:
    handle = Watcher({1: 3})
    async with WorkerEnv(handle, orderly=True) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert handle.of(0) == [0, 1, 1, 1, 1, 2]
    assert not env.send_back.sent
    assert not env.send_back.dead


async def test_other_queues_continue_while_one_is_suspended() -> None:
    handle = Watcher({0: 1}, SuspendQueue(3600))
    async with WorkerEnv(handle, orderly=True) as env:
        env.pull(0, queue_id=0)
        await until(lambda: handle.of(0) == [0], "the failure")
        env.pull(1, 2, 3, queue_id=1)
        await env.until_committable(4, 1)

        assert handle.of(0) == [0]
        assert env.service.next_queue() is None  # no worker looks at it meanwhile
        assert not env.queue(0).has_in_flight  # a hand-over need not wait for it


async def test_message_goes_to_the_dlq_after_its_retries() -> None:
    handle = Watcher({1: 99})
    async with WorkerEnv(handle, orderly=True, max_reconsume_times=2) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert handle.of(0) == [0, 1, 1, 1, 2]
    assert env.send_back.dead == [1]
    (event,) = env.events
    assert isinstance(event, MessageDeadLettered)


async def test_delay_level_minus_one_goes_to_the_dlq_at_once() -> None:
    handle = Watcher({0: 1}, RetryLater(-1))
    async with WorkerEnv(handle, orderly=True) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert handle.of(0) == [0, 1]
    assert env.send_back.dead == [0]


async def test_a_dead_letter_that_cannot_be_stored_holds_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orderly, "DEAD_LETTER_PAUSE_SECONDS", 0.001)
    handle = Watcher({0: 99})
    async with WorkerEnv(handle, orderly=True, max_reconsume_times=0) as env:
        env.send_back.down = 2
        env.pull(0, 1)
        await env.until_committable(2)

    assert handle.of(0) == [0, 0, 0, 1]
    assert env.send_back.dead == [0]


async def test_no_handler_is_called_without_the_lock() -> None:
    handle = Watcher()
    async with WorkerEnv(handle, orderly=True) as env:
        env.lost.add(env.queue(0).queue)
        env.pull(0, 1, queue_id=0)
        env.pull(0, 1, queue_id=1)
        await env.until_committable(2, 1)
        assert env.service.next_queue() is None  # no worker looks at the other one again

    assert handle.of(0) == []


async def test_reassigned_queue_waits_for_the_handler_of_its_last_assignment() -> None:
    started, go = asyncio.Event(), asyncio.Event()
    seen: list[int] = []
    running = most = 0

    async def handle(message: MessageExt) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        seen.append(message.queue_offset)
        started.set()
        if message.queue_offset == 0:
            await go.wait()
        running -= 1

    async with WorkerEnv(handle, orderly=True) as env:
        env.pull(0, 1)
        await started.wait()
        env.revoke()
        env.pull(1, 2)
        await asyncio.sleep(0)
        assert seen == [0]

        go.set()
        await env.until_committable(3)

    assert seen == [0, 1, 2]
    assert most == 1


async def test_a_message_that_is_pulled_again_during_its_handler_is_delivered_again() -> None:
    """The result for the last assignment is not committed."""
    gate = Gate(offset=0)
    async with WorkerEnv(gate, orderly=True) as env:
        env.pull(0)
        await gate.reached.wait()
        env.revoke()
        env.pull(0, 1)
        gate.open.set()
        await env.until_committable(2)

    assert gate.seen == [0, 0, 1]


async def test_message_of_a_released_queue_is_not_retried() -> None:
    gate = Gate(error=ValueError("bad"))
    async with WorkerEnv(gate, orderly=True, max_reconsume_times=0) as env:
        assigned = env.pull(0)
        await gate.reached.wait()
        assigned.drop()
        assigned.release()
        gate.open.set()
        await until(lambda: not assigned.has_in_flight, "the handler's end")

    assert env.send_back.dead == []


async def test_batches_without_auto_commit_wait_for_commit() -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        context.auto_commit = False
        if messages[-1].queue_offset == 5:
            context.commit()

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=2) as env:
        env.pull(0, 1, 2, 3)
        await until(lambda: len(batches) == 2, "two batches")
        await until(lambda: not env.queue().has_in_flight, "their end")
        assert env.queue().committable == 0

        env.pull(4, 5)
        await env.until_committable(6)

    assert batches == [[0, 1], [2, 3], [4, 5]]


async def test_uncommitted_messages_of_a_revoked_queue_are_not_in_flight() -> None:
    """Otherwise its lock would never be released."""

    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.auto_commit = False

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=2) as env:
        assigned = env.pull(0, 1)
        await until(lambda: assigned.uncommitted and not assigned.has_in_flight, "the batch")
        env.revoke()

    assert not assigned.in_flight.running


async def test_rollback_redelivers_everything_since_the_last_commit() -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        context.auto_commit = False
        if len(batches) in (2, 4):
            context.rollback()
        if len(batches) == 6:
            context.commit()

    async with WorkerEnv(
        on_batch=handle, orderly=True, consume_batch_size=2, max_reconsume_times=0
    ) as env:
        env.pull(0, 1, 2, 3)
        await env.until_committable(4)

    assert batches == [[0, 1], [2, 3]] * 3
    assert env.send_back.dead == []  # a retry would be a dead letter


async def test_failed_part_of_a_batch_is_retried() -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        if len(batches) == 1:
            context.ack_index = 0

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=3) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert batches == [[0, 1, 2], [1, 2]]


async def test_messages_of_a_suspended_queue_wait() -> None:
    handle = Watcher({0: 1}, SuspendQueue(0.05))
    async with WorkerEnv(handle, orderly=True) as env:
        assigned = env.pull(0)
        await until(lambda: handle.of(0) == [0], "the failure")
        await until(lambda: not assigned.has_in_flight, "its end")
        assigned.put(messages(1, of=assigned.queue))
        assigned.advance(2)
        env.service.add(assigned)
        await env.until_committable(2)

    assert handle.of(0) == [0, 0, 1]


async def test_pause_after_a_failed_dead_letter_holds_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orderly, "DEAD_LETTER_PAUSE_SECONDS", 3600.0)
    handle = Watcher({0: 99}, SuspendQueue(0))
    async with WorkerEnv(handle, orderly=True, max_reconsume_times=0, concurrency=1) as env:
        env.send_back.down = 1
        assigned = env.pull(0, queue_id=0)
        env.pull(1, 2, queue_id=1)
        await env.until_committable(3, 1)
        await settle()

        assert handle.of(0) == [0]
        assert assigned.committable == 0
        assert not assigned.has_in_flight  # a hand-over need not wait for the pause


class SlowDeadLetters(FakeSendBack):
    """Stores dead letters when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go = asyncio.Event(), asyncio.Event()

    async def dead_letter(self, message: MessageExt, reason: str) -> None:
        self.started.set()
        await self.go.wait()
        await super().dead_letter(message, reason)


def undecodable(message: MessageExt) -> Exception:
    return UndecodableError([(message, PayloadError("JSON", "bad"))])


@pytest.mark.parametrize("reason", [lambda _: RetryLater(-1), undecodable], ids=["said", "codec"])
async def test_storing_a_dead_letter_holds_its_queue_and_no_worker(
    reason: Callable[[MessageExt], Exception],
) -> None:
    handled: list[tuple[int, int]] = []

    async def handle(message: MessageExt) -> None:
        handled.append((message.queue.queue_id, message.queue_offset))
        if message.queue_offset == 0:
            raise reason(message)

    send_back = SlowDeadLetters()
    async with WorkerEnv(
        handle, orderly=True, undecodable="dead_letter", concurrency=1, send_back=send_back
    ) as env:
        assigned = env.pull(0, 1, queue_id=0)
        await send_back.started.wait()
        env.pull(2, 3, queue_id=1)
        await env.until_committable(4, 1)
        assert handled == [(0, 0), (1, 2), (1, 3)]
        assert assigned.has_in_flight

        send_back.go.set()
        await env.until_committable(2, 0)

    assert send_back.dead == [0]
    assert handled[3:] == [(0, 1)]


@pytest.mark.parametrize("end", [WorkerEnv.revoke, WorkerEnv.reset], ids=["revoked", "reset"])
async def test_no_dead_letter_is_stored_after_its_queue_was_revoked_or_reset(
    end: Callable[[WorkerEnv], object],
) -> None:
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.ack_index = context.delay_level = -1

    send_back = SlowDeadLetters()
    async with WorkerEnv(
        on_batch=handle, orderly=True, consume_batch_size=2, send_back=send_back
    ) as env:
        assigned = env.pull(0, 1)
        await send_back.started.wait()
        end(env)
        send_back.go.set()
        await until(lambda: not assigned.has_in_flight, "the end of the batch")

    assert send_back.dead == [0]


async def test_an_undecodable_message_is_retried_after_a_pause() -> None:
    tries: list[int] = []

    async def handle(message: MessageExt) -> None:
        if message.queue.queue_id == 0:
            tries.append(message.queue_offset)
            raise undecodable(message)

    async with WorkerEnv(
        handle, orderly=True, undecodable="retry", suspend_seconds=3600, concurrency=1
    ) as env:
        env.pull(0, 1, queue_id=0)
        env.pull(0, 1, queue_id=1)
        await env.until_committable(2, 1)

    assert tries == [0]


async def test_messages_behind_a_dead_letter_of_a_batch_keep_their_order() -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], _: BatchContext) -> None:
        batches.append(offsets(messages))
        if 1 in batches[-1]:
            messages[1].local_retries = 3
            raise ValueError("bad")

    async with WorkerEnv(
        on_batch=handle, orderly=True, consume_batch_size=3, max_reconsume_times=3
    ) as env:
        env.pull(0, 1, 2, 3)
        await env.until_committable(4)

    assert batches == [[0, 1, 2], [0, 2, 3]]
    assert env.send_back.dead == [1]


class OutOfStock(SuspendQueue):
    """A retry of an application, which does not call the constructor of its base."""

    def __init__(self) -> None:
        Exception.__init__(self, "book")


async def test_subclass_without_seconds_suspends_by_the_setting() -> None:
    handle = Watcher({1: 1}, OutOfStock())
    async with WorkerEnv(handle, orderly=True) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert handle.of(0) == [0, 1, 1, 2]


@pytest.mark.parametrize("seconds", ["5", -1.0, float("nan"), timedelta(seconds=5)], ids=repr)
async def test_subclass_with_invalid_seconds_suspends_by_the_setting(seconds: object) -> None:
    error = OutOfStock()
    error.seconds = seconds  # type: ignore[assignment]
    handle = Watcher({1: 1}, error)
    async with WorkerEnv(handle, orderly=True) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert handle.of(0) == [0, 1, 1, 2]


async def test_seek_ends_the_suspension_of_a_queue() -> None:
    handle = Watcher({0: 1}, SuspendQueue(3600))
    async with WorkerEnv(handle, orderly=True) as env:
        assigned = env.pull(0)
        await until(lambda: handle.seen and not assigned.has_in_flight, "the failure")
        assigned.move(5)
        env.pull(5, 6)
        await env.until_committable(7)

    assert handle.of(0) == [0, 5, 6]


@pytest.mark.parametrize("ends_first", [False, True], ids=["revoked", "handler-ends"])
async def test_queue_that_is_assigned_again_is_not_suspended(*, ends_first: bool) -> None:
    """Another member may have handled the message meanwhile."""
    gate = Gate(offset=0, error=SuspendQueue(3600))
    async with WorkerEnv(gate, orderly=True) as env:
        assigned = env.pull(0)
        await gate.reached.wait()
        if not ends_first:
            assigned.drop()
        gate.open.set()
        await until(lambda: not assigned.has_in_flight, "the end of the handler")
        env.revoke()
        env.pull(1, 2)
        await env.until_committable(3)

    assert gate.seen == [0, 1, 2]


async def test_delay_level_minus_one_of_a_batch_that_raises_sends_all_to_the_dlq() -> None:
    async def handle(_: list[MessageExt], context: BatchContext) -> None:
        context.delay_level = -1
        raise ValueError("bad")

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=2) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert env.send_back.dead == [0, 1]


async def test_a_batch_whose_handler_raises_is_retried_as_a_whole() -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        if len(batches) == 1:
            context.ack_index = 0
            raise ValueError("bad")

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=3) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert batches == [[0, 1, 2], [0, 1, 2]]


async def test_a_failed_batch_does_not_commit_those_before_it() -> None:
    committable: list[int] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        committable.append(env.queue().committable)
        if messages[0].queue_offset == 0:
            context.auto_commit = False
        elif len(committable) == 2:
            context.delay_level = 1
            raise ValueError("bad")

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=1) as env:
        env.pull(0, 1)
        await env.until_committable(2)

    assert committable == [0, 0, 0]


async def test_delay_level_minus_one_of_a_batch_sends_the_rest_to_the_dlq() -> None:
    batches: list[list[int]] = []

    async def handle(messages: list[MessageExt], context: BatchContext) -> None:
        batches.append(offsets(messages))
        context.ack_index = 0
        context.delay_level = -1

    async with WorkerEnv(on_batch=handle, orderly=True, consume_batch_size=3) as env:
        env.pull(0, 1, 2)
        await env.until_committable(3)

    assert batches == [[0, 1, 2]]
    assert env.send_back.dead == [1, 2]
