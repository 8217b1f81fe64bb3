"""Queues and messages for tests."""

from __future__ import annotations

from collections.abc import Iterable

from rocketmq_aio.config.consumer import OffsetStore
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.pop.consumer import PopConsumer
from rocketmq_aio.consumer.pull_loop.flow_control import Cache
from rocketmq_aio.consumer.pull_loop.queue_state import QueueState
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue


def queue(queue_id: int = 0, broker: str = "broker-a", topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


def message(offset: int, of: MessageQueue | None = None, size: int = 1) -> MessageExt:
    of = of or queue()
    return MessageExt(of.topic, b"x" * size, of, offset, bytes(88), b"")


def messages(*offsets: int, of: MessageQueue | None = None) -> list[MessageExt]:
    return [message(offset, of) for offset in offsets]


def offsets(taken: Iterable[MessageExt]) -> list[int]:
    return [each.queue_offset for each in taken]


async def commit(store: OffsetStore, offsets: dict[MessageQueue, int]) -> None:
    for each, offset in offsets.items():
        await store.update(each, offset)
    await store.persist(list(offsets))


class BugError(Exception):
    """An exception that no code of the package knows."""


def break_down(consumer: PushConsumer | LitePullConsumer | PopConsumer) -> None:
    """Let a background task of the consumer fail."""

    async def fail() -> None:
        raise BugError("a bug")

    consumer._engine._tasks.spawn(fail, name="bug")


def assigned_queue(
    queue_id: int = 0,
    *,
    begin: int = 0,
    cached: int = 0,
    cache: Cache | None = None,
    auto_commit: bool = True,
) -> PolledQueue:
    """Return a queue that begins at *begin*, with so many messages pulled already."""
    assigned = PolledQueue(queue(queue_id), cache or Cache(), auto_commit=auto_commit)
    assigned.begin(begin)
    pull(assigned, *range(begin, begin + cached))
    return assigned


def pull(assigned: QueueState, *found: int, next_offset: int | None = None) -> None:
    """Let a pull bring the messages *found*; what lies between them was filtered out."""
    assigned.put(messages(*found, of=assigned.queue))
    if next_offset is None:
        next_offset = found[-1] + 1 if found else assigned.next_offset
    assigned.advance(next_offset)
