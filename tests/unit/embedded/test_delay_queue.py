"""The delay queue: items are delivered on the clock."""

from __future__ import annotations

from rocketmq_aio.embedded.broker.delay_queue import PRUNE_AT, DelayQueue
from rocketmq_aio.embedded.clock import Clock

HOUR_MS = 3_600_000


async def test_items_are_delivered_in_the_order_of_their_times() -> None:
    clock, delivered = Clock(), list[str]()
    queue = DelayQueue[str](clock, delivered.append, lambda _: True)
    now = clock.now_ms()
    for hours, item in ((3, "c"), (1, "a"), (2, "b")):
        queue.add(now + hours * HOUR_MS, item)
    clock.advance(2 * 3600 + 1)

    assert delivered == ["a", "b"]
    clock.advance(3600)
    assert delivered == ["a", "b", "c"]


async def test_an_item_that_is_no_longer_wanted_is_not_delivered() -> None:
    clock, delivered, wanted = Clock(), list[str](), {"a", "b"}
    queue = DelayQueue[str](clock, delivered.append, wanted.__contains__)
    for item in ("a", "b"):
        queue.add(clock.now_ms() + HOUR_MS, item)
    wanted.remove("a")
    clock.advance(3601)

    assert delivered == ["b"]


async def test_unwanted_items_are_removed_before_the_queue_grows() -> None:
    clock = Clock()
    queue = DelayQueue[int](clock, lambda _: None, lambda number: number % 1000 == 0)
    for number in range(10 * PRUNE_AT):
        queue.add(clock.now_ms() + HOUR_MS, number)

    assert len(queue) <= PRUNE_AT


async def test_an_item_that_fails_does_not_stop_the_others() -> None:
    clock, delivered = Clock(), list[str]()

    def deliver(item: str) -> None:
        if item == "bad":
            raise ValueError(item)
        delivered.append(item)

    queue = DelayQueue[str](clock, deliver, lambda _: True)
    for seconds, item in ((1, "bad"), (2, "good")):
        queue.add(clock.now_ms() + seconds * 1000, item)
    try:
        clock.advance(1.5)
    except ValueError:
        clock.advance(2)

    assert delivered == ["good"]
