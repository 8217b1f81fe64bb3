"""PopBuffer: order, expiry and waiting callers."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from tests.unit.consumer.pop_env import popped


def buffer_of(*messages: PoppedMessage, orderly: bool = False) -> PopBuffer:
    buffer = PopBuffer(orderly=orderly)
    buffer.add(messages)
    return buffer


def offsets(messages: list[PoppedMessage]) -> list[tuple[int, int]]:
    return [(each.queue.queue_id, each.queue_offset) for each in messages]


def test_messages_are_taken_in_order_of_arrival() -> None:
    buffer = buffer_of(*(popped(n) for n in range(5)))

    assert offsets(buffer.take(2, 0)) == [(0, 0), (0, 1)]
    assert offsets(buffer.take(9, 0)) == [(0, 2), (0, 3), (0, 4)]
    assert buffer.take(9, 0) == []


def test_expired_and_acknowledged_messages_are_skipped() -> None:
    settled = popped(2)
    settled.ack_state = AckState.ACKED
    buffer = buffer_of(popped(1, expires_at=5.0), settled, popped(3))

    assert offsets(buffer.take(9, 5.0)) == [(0, 3)]


def test_in_order_a_queue_waits_for_its_messages_in_flight() -> None:
    buffer = buffer_of(popped(0), popped(1), popped(0, 1), popped(2), orderly=True)

    first = buffer.take(1, 0)
    assert offsets(first) == [(0, 0)]
    assert offsets(buffer.take(9, 0)) == [(1, 0)]
    first[0].ack_state = AckState.ACKED
    assert offsets(buffer.take(9, 0)) == [(0, 1), (0, 2)]


def test_orderly_messages_behind_an_expired_one_are_given_back() -> None:
    given_back: list[PoppedMessage] = []
    buffer = PopBuffer(orderly=True, give_back=given_back.extend)
    buffer.add([popped(0, expires_at=5.0), popped(1), popped(2), popped(0, 1)])

    assert offsets(buffer.take(1, 0)) == [(0, 0)]
    assert offsets(buffer.take(9, 4.9)) == [(1, 0)]
    assert buffer.take(9, 5.0) == []
    assert offsets(given_back) == [(0, 1), (0, 2)]


def test_orderly_messages_behind_one_that_expired_in_the_buffer_are_given_back() -> None:
    given_back: list[PoppedMessage] = []
    buffer = PopBuffer(orderly=True, give_back=given_back.extend)
    buffer.add([popped(0, expires_at=5.0), popped(1)])

    assert buffer.take(9, 5.0) == []
    assert offsets(given_back) == [(0, 1)]


def test_orderly_messages_popped_after_an_expired_one_are_delivered() -> None:
    given_back: list[PoppedMessage] = []
    buffer = PopBuffer(orderly=True, give_back=given_back.extend)
    buffer.add([popped(0, expires_at=5.0), popped(1, expires_at=5.0)])
    assert offsets(buffer.take(1, 0)) == [(0, 0)]
    buffer.add([popped(0, received_at=6.0), popped(1, received_at=6.0)])

    assert offsets(buffer.take(9, 7.0)) == [(0, 0), (0, 1)]
    assert given_back == []


def test_removed_messages_are_not_taken() -> None:
    buffer = buffer_of(popped(0), popped(0, 1), popped(1))

    assert offsets(buffer.remove(lambda each: each.queue.queue_id == 0)) == [(0, 0), (0, 1)]
    assert offsets(buffer.take(9, 0)) == [(1, 0)]


async def test_a_wait_ends_at_a_change_or_timeout() -> None:
    buffer = PopBuffer(orderly=False)
    waiting = [asyncio.ensure_future(buffer.wait(60)) for _ in range(2)]
    await asyncio.sleep(0)
    buffer.add([popped(0)])
    await asyncio.gather(*waiting)
    await buffer.wait(0.001)


async def test_a_cancelled_wait_leaves_no_waiter() -> None:
    buffer = PopBuffer(orderly=False)
    waiting = asyncio.ensure_future(buffer.wait(60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not len(buffer._waiters)
