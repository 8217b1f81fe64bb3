"""Orderly PushConsumer on a real broker: locks while handlers run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rocketmq_aio import ConsumerEvent, MessageExt, PushConfig, PushConsumer, QueuesRevoked
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.model.values import MessageQueue
from tests.broker.reading_groups import send
from tests.broker.test_locks import locks_of
from tests.unit.remoting.until import until, until_done


class Member:
    """An orderly consumer with a waiting handler, and another client that requests its locks."""

    def __init__(self, namesrv: str, group: str, topic: str, queue: MessageQueue) -> None:
        self.names = (namesrv, group, topic)
        self.queue = queue
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        self.ends_on_revocation = False
        self.other: QueueLocks
        self.consumer = PushConsumer(
            group,
            on_message=self.handle,
            orderly=True,
            namesrv=namesrv,
            config=PushConfig(start_from="earliest", close_timeout_seconds=0.2),
            on_event=self.note,
        )

    async def handle(self, _: MessageExt) -> None:
        self.reached.set()
        await self.go.wait()

    def note(self, event: ConsumerEvent) -> None:
        if self.ends_on_revocation and isinstance(event, QueuesRevoked):
            self.go.set()

    async def subscribe(self) -> None:
        await self.consumer.subscribe(self.names[2])
        await until(lambda: self.queue in self.consumer.assignment(), "the queue")

    async def unsubscribe(self) -> None:
        await self.consumer.unsubscribe(self.names[2])

    async def other_gets_lock(self) -> bool:
        return self.queue in await self.other.acquire([self.queue])

    @asynccontextmanager
    async def handling(self) -> AsyncIterator[None]:
        """Runs the consumer, with a message in its handler."""
        namesrv, _, topic = self.names
        await send(namesrv, topic, ["0", "1"], queue=self.queue)
        async with locks_of(*self.names) as (self.other, _, _), self.consumer:
            await self.subscribe()
            await self.reached.wait()
            yield


async def test_no_other_member_gets_the_lock_while_a_handler_of_any_assignment_runs(
    namesrv: str, group: str, topic: str, queue: MessageQueue
) -> None:
    member = Member(namesrv, group, topic, queue)
    async with member.handling():
        await member.unsubscribe()
        assert not await member.other_gets_lock()
        await member.subscribe()
        await member.unsubscribe()
        assert not await member.other_gets_lock()

        member.go.set()
        await until_done(member.other_gets_lock, "the lock")


async def test_another_member_gets_the_lock_when_the_handler_ends_on_revocation(
    namesrv: str, group: str, topic: str, queue: MessageQueue
) -> None:
    member = Member(namesrv, group, topic, queue)
    member.ends_on_revocation = True
    async with member.handling():
        await member.unsubscribe()
        await until_done(member.other_gets_lock, "the lock")
