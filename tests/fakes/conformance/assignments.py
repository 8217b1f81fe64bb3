"""Queue assignment by the broker (5.x)."""

from __future__ import annotations

import msgspec

from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.requests.groups import (
    AssignmentRequest,
    AssignmentResponse,
    QueryAssignment,
)
from tests.fakes.conformance.case_env import QUEUES, Case, CaseEnv
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.raw_client import RawClient

Assigned = list[tuple[int, str]] | int | None  # queue ids and modes; a code; no list at all


async def ask(client: RawClient, env: CaseEnv, client_id: str, **changes: str) -> Assigned:
    """Return the queues that the broker assigns to a member."""
    fields = {
        "topic": env.topic,
        "consumer_group": env.group,
        "client_id": client_id,
        "strategy_name": "AVG",
        "message_model": "CLUSTERING",
    }
    body = msgspec.json.encode(AssignmentRequest(**fields | changes))
    answer = await client.ask(QueryAssignment(), body)
    if answer.code:
        return answer.code
    assigned = read_body(answer.body, AssignmentResponse).message_queue_assignments
    if assigned is None:
        return None
    return sorted((each.message_queue.queue_id, each.mode) for each in assigned)


async def set_mode(client: RawClient, env: CaseEnv, topic: str, mode: str) -> int:
    """Set the request mode of the group for *topic*; return the response code."""
    wanted = {"topic": topic, "consumerGroup": env.group, "mode": mode, "popShareQueueNum": 0}
    opaque = client.send_fields(
        RequestCode.SET_MESSAGE_REQUEST_MODE, {}, msgspec.json.encode(wanted)
    )
    return (await client.answer(opaque)).code


def pulled(*numbers: int) -> list[tuple[int, str]]:
    return [(number, "PULL") for number in numbers]


async def brokers_before_5_do_not_know_the_request(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        said = await ask(client, env, "c@1")

    assert said == (pulled(*range(QUEUES)) if env.is_5 else 3)


async def members_share_the_queues_by_the_strategy(env: CaseEnv) -> None:
    async with env.client() as one, env.client() as two:
        await heartbeat(one, env, "c@1")
        await heartbeat(two, env, "c@2")
        blocks = [await ask(one, env, member) for member in ("c@1", "c@2")]
        dealt = await ask(one, env, "c@2", strategy_name="AVG_BY_CIRCLE")

    assert blocks == ([pulled(0, 1), pulled(2, 3)] if env.is_5 else [3, 3])
    assert dealt == (pulled(1, 3) if env.is_5 else 3)


async def a_client_that_is_not_a_member_gets_no_queues(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")

        assert await ask(client, env, "c@9") == ([] if env.is_5 else 3)


async def unknown_groups_topics_and_strategies_get_no_assignment(env: CaseEnv) -> None:
    async with env.client() as client:
        nobody = await ask(client, env, "c@1")
        await heartbeat(client, env, "c@1")
        nothing = await ask(client, env, "c@1", topic=f"{env.topic}-unknown")
        nohow = await ask(client, env, "c@1", strategy_name="CONSISTENT_HASH")

    assert [nobody, nothing, nohow] == [None if env.is_5 else 3] * 3


async def broadcasting_members_get_all_queues(env: CaseEnv) -> None:
    async with env.client() as client:
        said = await ask(client, env, "c@9", message_model="BROADCASTING")

    assert said == (pulled(*range(QUEUES)) if env.is_5 else 3)


async def a_group_is_told_to_pop_all_queues_of_a_broker(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        code = await set_mode(client, env, env.topic, "POP")
        popped = await ask(client, env, "c@1")
        back = await set_mode(client, env, env.topic, "PULL")
        said = await ask(client, env, "c@1")

    assert (code, back) == ((0, 0) if env.is_5 else (3, 3))
    assert popped == ([(-1, "POP")] if env.is_5 else 3)
    assert said == (pulled(*range(QUEUES)) if env.is_5 else 3)


async def retried_messages_are_always_pulled(env: CaseEnv) -> None:
    async with env.client() as client:
        code = await set_mode(client, env, f"%RETRY%{env.group}", "POP")

    assert code == (16 if env.is_5 else 3)


CASES: tuple[Case, ...] = (
    brokers_before_5_do_not_know_the_request,
    members_share_the_queues_by_the_strategy,
    a_client_that_is_not_a_member_gets_no_queues,
    unknown_groups_topics_and_strategies_get_no_assignment,
    broadcasting_members_get_all_queues,
    a_group_is_told_to_pop_all_queues_of_a_broker,
    retried_messages_are_always_pulled,
)
