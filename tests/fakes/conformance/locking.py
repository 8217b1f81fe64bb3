"""Queue locks: owners, renewal and release."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueueBody
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.groups import LockBatchMQ, UnlockBatchMQ
from tests.fakes.conformance.case_env import Case, CaseEnv
from tests.fakes.raw_client import RawClient


def body(env: CaseEnv, client_id: str, queue_ids: tuple[int, ...]) -> bytes:
    queues = [
        MessageQueueBody(topic=env.topic, broker_name="broker-a", queue_id=number)
        for number in queue_ids
    ]
    asked = LockBatchRequest(consumer_group=env.group, client_id=client_id, mq_set=queues)
    return msgspec.json.encode(asked)


async def lock(client: RawClient, env: CaseEnv, client_id: str, *queue_ids: int) -> list[int]:
    """Request locks; return the ids of the queues that *client_id* owns now."""
    answer = await client.ask(LockBatchMQ(), body(env, client_id, queue_ids))
    assert answer.code == 0, answer
    return sorted(each.queue_id for each in read_body(answer.body, LockBatchResponse).locked)


async def unlock(client: RawClient, env: CaseEnv, client_id: str, *queue_ids: int) -> None:
    answer = await client.ask(UnlockBatchMQ(), body(env, client_id, queue_ids))
    assert (answer.code, answer.body) == (0, b"")


async def a_queue_is_locked_for_one_client_id(env: CaseEnv) -> None:
    async with env.client() as client:
        first = await lock(client, env, "c@1", 0, 1)

        assert first == [0, 1]
        assert await lock(client, env, "c@2", 1, 2) == [2]
        assert await lock(client, env, "c@1", 0, 1, 2) == [0, 1]


async def locks_are_per_group(env: CaseEnv) -> None:
    async with env.client() as client:
        await lock(client, env, "c@1", 0)
        other = env._replace(group=f"{env.group}-2")

        assert await lock(client, other, "c@2", 0) == [0]


async def a_lock_outlives_its_connection(env: CaseEnv) -> None:
    async with env.client() as client:
        await lock(client, env, "c@1", 0)
    async with env.client() as client:
        assert await lock(client, env, "c@2", 0) == []
        assert await lock(client, env, "c@1", 0) == [0]


async def an_unlocked_queue_is_free(env: CaseEnv) -> None:
    async with env.client() as client:
        await lock(client, env, "c@1", 0, 1)
        await unlock(client, env, "c@1", 0)

        assert await lock(client, env, "c@2", 0, 1) == [0]


async def only_its_owner_can_unlock_a_queue(env: CaseEnv) -> None:
    async with env.client() as client:
        await lock(client, env, "c@1", 0)
        await unlock(client, env, "c@2", 0)

        assert await lock(client, env, "c@2", 0) == []


async def any_queue_is_locked_also_one_that_does_not_exist(env: CaseEnv) -> None:
    async with env.client() as client:
        assert await lock(client, env, "c@1", 999) == [999]


CASES: tuple[Case, ...] = (
    a_queue_is_locked_for_one_client_id,
    locks_are_per_group,
    a_lock_outlives_its_connection,
    an_unlocked_queue_is_free,
    only_its_owner_can_unlock_a_queue,
    any_queue_is_locked_also_one_that_does_not_exist,
)
