"""Every kind of consumer reads a light message queue; with the stores that tests choose."""

from __future__ import annotations

import asyncio
from typing import Final

from rocketmq_aio import (
    AdminClient,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageQueue,
    PopConfig,
    PopConsumer,
    Producer,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RetryLater,
)
from rocketmq_aio.testing import Cluster
from tests.broker.reading_groups import POLL_SECONDS, is_5
from tests.unit.remoting.until import until_done

SECONDS: Final = 60.0
POP: Final = PopConfig(start_from="earliest", invisible_seconds=300)
PUSH: Final = PushConfig(start_from="earliest")


async def read_by_every_kind_of_consumer(cluster: Cluster, admin: AdminClient, group: str) -> None:
    """Send messages to a light message queue and read all with each consumer."""
    parent, light = f"{group}-p", f"%LMQ%{group}"
    bodies = [b"%d" % number for number in range(9)]
    handled: list[tuple[bytes, int]] = []

    async def handle(message: MessageExt) -> None:
        handled.append((message.body, message.reconsume_times))
        if handled[-1] == (b"3", 0):
            raise RetryLater(1)

    async def all_handled() -> bool:
        return len(handled) > len(bodies)

    await admin.topics.create(parent, queues=4)
    properties = {"INNER_MULTI_DISPATCH": f"{light}-other,{light}"}
    async with Producer("light", namesrv=cluster.namesrv) as producer:
        for body in bodies:  # in four queues of the parent
            await producer.send(Message(parent, body, properties=properties))
        shared = Message(parent, b"x", properties={"INNER_MULTI_DISPATCH": f"{light}-shared"})
        await asyncio.gather(producer.send_nowait(shared), producer.send_nowait(shared))

    async with PullConsumer(group, namesrv=cluster.namesrv) as consumer:
        (queue,) = await consumer.message_queues(light)
        await until_done(lambda: ends_at(consumer, queue, 9), "the light queue", POLL_SECONDS)
        first, later = await consumer.pull(queue, 0), await consumer.pull(queue, 5)
        await consumer.commit(queue, 2)
        (queue_of_shared,) = await consumer.message_queues(f"{light}-shared")
        assert await consumer.max_offset(queue_of_shared) == 2
    read = [each async for each in admin.messages.read(light)]
    fifth = await admin.messages.by_offset(queue, 5)
    since = [each async for each in admin.messages.read(light, begin=fifth.store_time)]
    config = LitePullConfig(start_from="earliest")
    async with LitePullConsumer(group, namesrv=cluster.namesrv, config=config) as lite:
        await lite.subscribe(light)
        polled = await lite.poll(timeout_seconds=SECONDS)
        assert await lite.lag() == {queue: 0}
    async with PushConsumer(
        f"{group}-push", namesrv=cluster.namesrv, config=PUSH, on_message=handle
    ) as push:
        await push.subscribe(light)
        await until_done(all_handled, "the message that failed once", SECONDS)
    if is_5(cluster):
        popped = await pop_all(cluster, f"{group}-pop", light, len(bodies))
        assert sorted(popped) == bodies

    assert [(each.queue, each.queue_offset) for each in first.messages] == [
        (queue, number) for number in range(9)
    ]
    assert [(each.queue, each.queue_offset, each.body) for each in read] == [
        (queue, number, body) for number, body in enumerate(bodies)
    ]
    assert fifth.body == bodies[5]
    assert [each.body for each in since] == [
        each.body for each in read if each.store_time >= fifth.store_time
    ]
    assert [each.body for each in first.messages] == bodies
    assert [each.body for each in later.messages] == bodies[5:]
    assert [each.body for each in polled] == bodies[2:]
    assert sorted(handled) == sorted([*((body, 0) for body in bodies), (b"3", 1)])


async def pop_all(cluster: Cluster, group: str, light: str, count: int) -> list[bytes]:
    """Pop and acknowledge *count* messages."""
    popped: list[bytes] = []
    async with PopConsumer(group, namesrv=cluster.namesrv, config=POP) as popping:
        await popping.subscribe(light)
        while len(popped) < count:
            batch = await popping.receive(32, wait_seconds=SECONDS)
            assert batch
            popped += [message.body for message in batch]
            await popping.ack(batch)
    return popped


async def ends_at(consumer: PullConsumer, queue: MessageQueue, offset: int) -> bool:
    return await consumer.max_offset(queue) == offset
