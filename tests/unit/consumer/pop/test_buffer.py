"""Messages that wait for somebody."""

from __future__ import annotations

import asyncio

import pytest

from rocketmq_aio.consumer.pop.buffer import PopBuffer
from rocketmq_aio.consumer.pop.message import AckState, PoppedMessage
from tests.unit.consumer.popping import popped


def stock_of(*messages: PoppedMessage, orderly: bool = False) -> PopBuffer:
    stock = PopBuffer(orderly=orderly)
    stock.add(messages)
    return stock


def offsets(messages: list[PoppedMessage]) -> list[tuple[int, int]]:
    return [(each.queue.queue_id, each.queue_offset) for each in messages]


def test_messages_are_taken_in_order_of_arrival() -> None:
    stock = stock_of(*(popped(n) for n in range(5)))

    assert offsets(stock.take(2, 0)) == [(0, 0), (0, 1)]
    assert offsets(stock.take(9, 0)) == [(0, 2), (0, 3), (0, 4)]
    assert stock.take(9, 0) == []


def test_expired_and_acknowledged_messages_are_skipped() -> None:
    settled = popped(2)
    settled.ack_state = AckState.ACKED
    stock = stock_of(popped(1, deadline=5.0), settled, popped(3))

    assert offsets(stock.take(9, 5.0)) == [(0, 3)]


def test_in_order_a_queue_waits_for_its_messages_in_flight() -> None:
    stock = stock_of(popped(0), popped(1), popped(0, 1), popped(2), orderly=True)

    first = stock.take(1, 0)
    assert offsets(first) == [(0, 0)]
    assert offsets(stock.take(9, 0)) == [(1, 0)]
    first[0].ack_state = AckState.ACKED
    assert offsets(stock.take(9, 0)) == [(0, 1), (0, 2)]


def test_orderly_messages_behind_an_expired_one_are_given_back() -> None:
    given_back: list[PoppedMessage] = []
    stock = PopBuffer(orderly=True, give_back=given_back.extend)
    stock.add([popped(0, deadline=5.0), popped(1), popped(2), popped(0, 1)])

    assert offsets(stock.take(1, 0)) == [(0, 0)]
    assert offsets(stock.take(9, 4.9)) == [(1, 0)]
    assert stock.take(9, 5.0) == []
    assert offsets(given_back) == [(0, 1), (0, 2)]


def test_orderly_messages_behind_one_that_expired_in_the_buffer_are_given_back() -> None:
    given_back: list[PoppedMessage] = []
    stock = PopBuffer(orderly=True, give_back=given_back.extend)
    stock.add([popped(0, deadline=5.0), popped(1)])

    assert stock.take(9, 5.0) == []
    assert offsets(given_back) == [(0, 1)]


def test_orderly_messages_popped_after_an_expired_one_are_delivered() -> None:
    given_back: list[PoppedMessage] = []
    stock = PopBuffer(orderly=True, give_back=given_back.extend)
    stock.add([popped(0, deadline=5.0), popped(1, deadline=5.0)])
    assert offsets(stock.take(1, 0)) == [(0, 0)]
    stock.add([popped(0, received_at=6.0), popped(1, received_at=6.0)])

    assert offsets(stock.take(9, 7.0)) == [(0, 0), (0, 1)]
    assert given_back == []


def test_removed_messages_are_not_taken() -> None:
    stock = stock_of(popped(0), popped(0, 1), popped(1))

    assert offsets(stock.remove(lambda each: each.queue.queue_id == 0)) == [(0, 0), (0, 1)]
    assert offsets(stock.take(9, 0)) == [(1, 0)]


async def test_a_wait_ends_at_a_change_or_timeout() -> None:
    stock = PopBuffer(orderly=False)
    waiting = [asyncio.ensure_future(stock.wait(60)) for _ in range(2)]
    await asyncio.sleep(0)
    stock.add([popped(0)])
    await asyncio.gather(*waiting)
    await stock.wait(0.001)


async def test_a_cancelled_wait_leaves_no_waiter() -> None:
    stock = PopBuffer(orderly=False)
    waiting = asyncio.ensure_future(stock.wait(60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert not len(stock._waiters)
