"""InFlight: messages in flight across assignments of their queue."""

from __future__ import annotations

import asyncio
import gc
from weakref import ref

import pytest

from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.consumer.push.handlers import BatchContext, UndecodableError
from rocketmq_aio.errors import PayloadError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties
from tests.unit.consumer.parts import messages, offsets, queue
from tests.unit.consumer.worker_env import Gate, WorkerEnv
from tests.unit.remoting.until import until


class Queue:
    """Assignments of one queue, one after the other; *ready* are those that got a message."""

    def __init__(self) -> None:
        self.ready: list[DispatchQueue] = []
        self.in_flight = InFlight(self.ready.append)

    def assign(self, *pulled: int, begin: int = 0) -> DispatchQueue:
        assigned = DispatchQueue(queue(), self.in_flight)
        assigned.begin(begin)
        if pulled:
            assigned.put(messages(*pulled))
            assigned.advance(pulled[-1] + 1)
        return assigned


def revoke(assigned: DispatchQueue) -> None:
    assigned.drop()
    assigned.release()


def handle_all(assigned: DispatchQueue) -> list[int]:
    """Let handlers do whatever may be delivered."""
    taken = assigned.take(99) if assigned.waiting else []
    assigned.complete(taken)
    return offsets(taken)


@pytest.fixture
def of() -> Queue:
    return Queue()


def test_a_message_in_a_handler_is_withheld_from_the_next_assignment(of: Queue) -> None:
    before = of.assign(0, 1, 2)
    before.take(2)
    revoke(before)
    now = of.assign(0, 1, 2, 3)

    assert handle_all(now) == [2, 3]
    assert now.committable == 0, "nothing may be committed beyond what a handler works on"


def test_success_of_the_earlier_handler_settles_the_withheld_message(of: Queue) -> None:
    before = of.assign(0, 1, 2)
    taken = before.take(1)
    revoke(before)
    now = of.assign(0, 1, 2)
    handle_all(now)
    before.complete(taken)

    assert (now.committable, offsets(now.waiting), of.ready) == (3, [], [])


def test_failure_of_the_earlier_handler_delivers_the_withheld_message(of: Queue) -> None:
    before = of.assign(0, 1, 2)
    taken = before.take(1)
    revoke(before)
    now = of.assign(0, 1, 2)
    handle_all(now)
    before.finish(taken)

    assert (now.committable, of.ready) == (0, [now])
    assert handle_all(now) == [0]
    assert now.committable == 3


def test_a_message_stays_withheld_over_several_assignments(of: Queue) -> None:
    first = of.assign(0, 1)
    in_first = first.take(1)
    revoke(first)
    second = of.assign(0, 1)
    in_second = second.take(1)
    revoke(second)
    third = of.assign(0, 1, 2)

    assert handle_all(third) == [2]
    second.finish(in_second)
    assert handle_all(third) == [1]
    assert third.committable == 0
    first.complete(in_first)
    assert third.committable == 3


def test_a_handler_that_ends_between_assignments_withholds_nothing(of: Queue) -> None:
    before = of.assign(0)
    taken = before.take(1)
    revoke(before)
    before.finish(taken)

    assert handle_all(of.assign(0)) == [0]


def test_another_message_at_the_same_offset_is_delivered(of: Queue) -> None:
    """The topic was deleted and created again while the handler ran."""
    before = of.assign(0)
    before.take(1)
    revoke(before)
    now = of.assign()
    raw = encode_properties({"UNIQ_KEY": "another"}).encode()
    now.put([MessageExt("orders", b"y", queue(), 0, bytes(88), raw)])

    assert handle_all(now) == [0]


def test_a_restart_withholds_a_message_until_its_handler_ends_and_delivers_it_again(
    of: Queue,
) -> None:
    assigned = of.assign(0, 1)
    taken = assigned.take(1)
    assigned.restart(0)
    assigned.put(messages(0, 1))
    assigned.advance(2)

    assert handle_all(assigned) == [1]
    assigned.complete(taken)
    assert (assigned.committable, of.ready) == (0, [assigned])
    assert handle_all(assigned) == [0]
    assert assigned.committable == 2


def test_results_of_handlers_count_after_the_end_of_the_queue_moved_down(of: Queue) -> None:
    assigned = of.assign(0, 1)
    taken = assigned.take(1)
    assigned.step_back(1)
    assigned.put(messages(0))
    assigned.advance(1)
    assigned.complete(taken)

    assert (assigned.committable, offsets(assigned.waiting)) == (1, [])


def test_a_seek_discards_results_of_handlers_of_earlier_assignments(of: Queue) -> None:
    before = of.assign(0)
    taken = before.take(1)
    revoke(before)
    now = of.assign(0)
    now.restart(0)
    now.put(messages(0))
    before.complete(taken)

    assert handle_all(now) == [0]


def test_a_seek_while_the_queue_is_revoked_discards_results_of_handlers(of: Queue) -> None:
    before = of.assign(0)
    taken = before.take(1)
    before.drop()
    before.restart(0)
    before.release()
    now = of.assign(0)
    before.complete(taken)

    assert handle_all(now) == [0]


def test_a_handler_that_ended_before_a_seek_of_a_revoked_queue_withholds_nothing(of: Queue) -> None:
    before = of.assign(0)
    taken = before.take(1)
    before.drop()
    before.finish(taken)
    before.restart(0)
    before.release()

    assert handle_all(of.assign(0)) == [0]


async def test_idle_waits_for_all_handlers_of_earlier_assignments(of: Queue) -> None:
    first = of.assign(0, 1)
    in_first = first.take(1)
    revoke(first)
    second = of.assign(0, 1)
    in_second = second.take(1)
    revoke(second)
    idle = asyncio.create_task(of.in_flight.wait_until_idle())
    await asyncio.sleep(0)
    second.complete(in_second)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not idle.done()

    first.finish(in_first)
    await asyncio.wait_for(idle, 15)


async def test_idle_is_noticed_by_a_wait_that_begins_after_it(of: Queue) -> None:
    before = of.assign(0)
    taken = before.take(1)
    revoke(before)
    before.complete(taken)

    await asyncio.wait_for(of.in_flight.wait_until_idle(), 15)


def test_a_queue_without_assignment_and_handlers_is_forgotten(of: Queue) -> None:
    before = of.assign(0, 1)
    taken = before.take(1)
    revoke(before)
    before.complete(taken)
    in_flight = ref(of.in_flight)
    del before, of.in_flight
    gc.collect()

    assert in_flight() is None


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
async def test_a_concurrent_queue_starts_one_handler_per_message_across_assignments(
    fails: bool,
) -> None:
    handle = Gate(0, error=ValueError("bad") if fails else None)
    async with WorkerEnv(handle) as env:
        env.pull(0, 1)
        await handle.reached.wait()
        env.revoke()
        env.pull(0, 1, 2)
        await until(lambda: 2 in handle.seen, "the messages behind")
        assert handle.seen.count(0) == 1

        handle.open.set()
        await env.until_committable(3)

    assert handle.seen.count(0) == (2 if fails else 1)
    assert env.send_back.sent == []


async def test_a_message_that_waits_for_a_local_retry_is_not_delivered_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    retrying, go = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        retrying.set()
        await go.wait()

    monkeypatch.setattr("rocketmq_aio.consumer.push.concurrent.anyio.sleep", pause)
    handle = Gate(0, error=ValueError("bad"))
    handle.open.set()
    async with WorkerEnv(handle) as env:
        env.send_back.down = 1
        env.pull(0)
        await retrying.wait()
        env.revoke()
        env.pull(0, 1)
        await until(lambda: 1 in handle.seen, "the message behind")
        assert handle.seen == [0, 1]

        go.set()
        await env.until_committable(2)

    assert handle.seen == [0, 1, 0]


async def test_messages_of_a_batch_that_were_put_back_belong_to_their_next_handler() -> None:
    """The first call is not over yet: it is still sending back what cannot be decoded."""
    calls: list[list[int]] = []
    sending, sent, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(batch: list[MessageExt], _: BatchContext) -> None:
        calls.append(offsets(batch))
        if len(calls) == 1:
            raise UndecodableError([(batch[0], PayloadError("codec", "bad"))])
        if len(calls) == 2:
            await go.wait()

    async def send_back(message: MessageExt, delay_level: int = 0) -> None:
        sending.set()
        await sent.wait()

    async with WorkerEnv(on_batch=handle, consume_batch_size=2) as env:
        env.send_back.send_back = send_back  # type: ignore[method-assign]
        before = env.pull(0, 1)
        await sending.wait()
        await until(lambda: calls == [[0, 1], [1]], "the second handler")
        env.revoke()
        env.pull(0, 1)
        sent.set()
        await until(lambda: before.active == 1, "the end of the first call")
        env.pull(2)
        await until(lambda: [2] in calls, "a message behind")
        assert calls.count([1]) == 1

        go.set()
        await env.until_committable(3)

    assert calls == [[0, 1], [1], [2]]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_revoked_queue_keeps_no_messages_in_memory(orderly: bool) -> None:
    handle = Gate(0)
    handle.open.set()
    async with WorkerEnv(handle, orderly=orderly) as env:
        env.pull(0)
        await env.until_committable(1)
        env.service.suspended = True
        env.pull(*range(1, 100))
        env.revoke()
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, MessageExt)]

    assert offsets(kept) in ([0], []), "a worker refers to its last message"
