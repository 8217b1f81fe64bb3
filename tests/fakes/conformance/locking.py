"""Queue locks: owners, renewal and release."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueueBody
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.client import LockBatchMQ, UnlockBatchMQ
from tests.fakes.conformance.ground import Case, Ground
from tests.fakes.raw_client import RawClient


def body(ground: Ground, client_id: str, queue_ids: tuple[int, ...]) -> bytes:
    queues = [
        MessageQueueBody(topic=ground.topic, broker_name="broker-a", queue_id=number)
        for number in queue_ids
    ]
    asked = LockBatchRequest(consumer_group=ground.group, client_id=client_id, mq_set=queues)
    return msgspec.json.encode(asked)


async def lock(client: RawClient, ground: Ground, client_id: str, *queue_ids: int) -> list[int]:
    """Request locks; return the ids of the queues that *client_id* owns now."""
    answer = await client.ask(LockBatchMQ(), body(ground, client_id, queue_ids))
    assert answer.code == 0, answer
    return sorted(each.queue_id for each in read_body(answer.body, LockBatchResponse).locked)


async def unlock(client: RawClient, ground: Ground, client_id: str, *queue_ids: int) -> None:
    answer = await client.ask(UnlockBatchMQ(), body(ground, client_id, queue_ids))
    assert (answer.code, answer.body) == (0, b"")


async def a_queue_is_locked_for_one_client_id(ground: Ground) -> None:
    async with ground.client() as client:
        first = await lock(client, ground, "c@1", 0, 1)

        assert first == [0, 1]
        assert await lock(client, ground, "c@2", 1, 2) == [2]
        assert await lock(client, ground, "c@1", 0, 1, 2) == [0, 1]


async def each_group_has_locks_of_its_own(ground: Ground) -> None:
    async with ground.client() as client:
        await lock(client, ground, "c@1", 0)
        other = ground._replace(group=f"{ground.group}-2")

        assert await lock(client, other, "c@2", 0) == [0]


async def a_lock_outlives_its_connection(ground: Ground) -> None:
    async with ground.client() as client:
        await lock(client, ground, "c@1", 0)
    async with ground.client() as client:
        assert await lock(client, ground, "c@2", 0) == []
        assert await lock(client, ground, "c@1", 0) == [0]


async def an_unlocked_queue_is_free(ground: Ground) -> None:
    async with ground.client() as client:
        await lock(client, ground, "c@1", 0, 1)
        await unlock(client, ground, "c@1", 0)

        assert await lock(client, ground, "c@2", 0, 1) == [0]


async def only_its_owner_can_unlock_a_queue(ground: Ground) -> None:
    async with ground.client() as client:
        await lock(client, ground, "c@1", 0)
        await unlock(client, ground, "c@2", 0)

        assert await lock(client, ground, "c@2", 0) == []


async def any_queue_is_locked_also_one_that_does_not_exist(ground: Ground) -> None:
    async with ground.client() as client:
        assert await lock(client, ground, "c@1", 999) == [999]


CASES: tuple[Case, ...] = (
    a_queue_is_locked_for_one_client_id,
    each_group_has_locks_of_its_own,
    a_lock_outlives_its_connection,
    an_unlocked_queue_is_free,
    only_its_owner_can_unlock_a_queue,
    any_queue_is_locked_also_one_that_does_not_exist,
)
