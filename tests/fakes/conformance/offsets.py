"""Offsets of groups and of queues."""

from __future__ import annotations

import asyncio
from typing import Any

from rocketmq_aio.protocol.codes import PULL_SUBSCRIPTION, RequestCode
from rocketmq_aio.protocol.header import RequestHeader, read_header
from rocketmq_aio.protocol.requests.offsets import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    TimestampResponse,
    UpdateConsumerOffset,
)
from tests.fakes.conformance.case_env import (
    Case,
    CaseEnv,
    eventually,
    everything,
    pull_header,
    send,
)
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.raw_client import RawClient

FUTURE_MILLIS = 4_000_000_000_000


def query(env: CaseEnv, **changes: object) -> QueryConsumerOffset:
    fields: dict[str, object] = {"consumer_group": env.group, "topic": env.topic, "queue_id": 0}
    return QueryConsumerOffset(**fields | changes)  # type: ignore[arg-type]


def update(env: CaseEnv, offset: int, topic: str | None = None) -> UpdateConsumerOffset:
    return UpdateConsumerOffset(
        consumer_group=env.group, topic=topic or env.topic, queue_id=0, commit_offset=offset
    )


async def offset(client: RawClient, header: RequestHeader) -> int:
    answer = await client.ask(header)
    assert answer.code == 0, answer
    return read_header(answer, OffsetResponse).offset


async def without_a_commit_an_empty_queue_has_no_offset_from_5_on(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(query(env))

    if env.is_5:
        assert answer.code == 22
    else:  # 4.9 does not distinguish it from a commit of 0
        assert (answer.code, answer.ext_fields()) == (0, {"offset": "0"})


async def a_negative_commit_counts_as_none(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await send(client, env, b"body")
        await everything(client, env, 1)
        await client.ask(update(env, -1))
        found = await offset(client, query(env))

    assert found == 0


async def without_a_commit_a_young_queue_begins_at_0_unless_told_not_to(env: CaseEnv) -> None:
    async with env.client() as client:
        await send(client, env, b"body")
        await everything(client, env, 1)
        lenient = await client.ask(query(env))
        strict = await client.ask(query(env, set_zero_if_not_found=False))

    assert (lenient.code, lenient.ext_fields()) == (0, {"offset": "0"})
    assert strict.code == (22 if env.is_5 else 0)


async def a_commit_is_what_is_read_next_even_backwards_or_beyond(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        for committed in (5, 3, 1000):
            assert (await client.ask(update(env, committed))).code == 0
            assert await offset(client, query(env)) == committed


async def a_commit_is_the_groups_and_the_queues_own(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await client.ask(update(env, 5))
        other_queue = await client.ask(query(env, queue_id=1))
        other_group = await client.ask(query(env, consumer_group=f"{env.group}-2"))

    assert other_queue.ext_fields().get("offset") != "5"
    assert other_group.ext_fields().get("offset") != "5"


async def a_oneway_commit_takes_effect(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        client.send(update(env, 7), oneway=True)

        async def is_seen() -> bool:
            return (await client.ask(query(env))).ext_fields().get("offset") == "7"

        assert await eventually(is_seen)


async def brokers_from_5_refuse_commits_for_unknown_topics_and_groups(env: CaseEnv) -> None:
    async with env.client() as client:
        group = await client.ask(update(env, 5))
        await heartbeat(client, env, "c@1")
        topic = await client.ask(update(env, 5, f"{env.topic}-unknown"))

    assert (group.code, topic.code) == ((26, 17) if env.is_5 else (0, 0))


async def a_pull_makes_its_group_known(env: CaseEnv) -> None:
    async with env.client() as client:
        await client.ask(pull_header(env, 0, sys_flag=PULL_SUBSCRIPTION))
        answer = await client.ask(update(env, 5))

    assert answer.code == 0


async def a_queue_returns_its_first_and_next_offset(env: CaseEnv) -> None:
    max_offset = GetMaxOffset(topic=env.topic, queue_id=0)
    min_offset = GetMinOffset(topic=env.topic, queue_id=0)
    async with env.client() as client:
        empty = (await offset(client, min_offset), await offset(client, max_offset))
        for _ in range(3):
            await send(client, env, b"body")
        await everything(client, env, 3)
        filled = (await offset(client, min_offset), await offset(client, max_offset))

    assert (empty, filled) == ((0, 0), (0, 3))


async def an_offset_is_found_by_store_time(env: CaseEnv) -> None:
    async with env.client() as client:
        for _ in range(3):
            await send(client, env, b"body")
            await asyncio.sleep(0.05)  # store times must differ
        messages = await everything(client, env, 3)
        times = [round(message.store_time.timestamp() * 1000) for message in messages]
        found = [
            await offset(client, SearchOffset(topic=env.topic, queue_id=0, timestamp=each))
            for each in (0, *times, FUTURE_MILLIS)
        ]

    # After the last message: its end since 5.0, the message itself before.
    assert found == [0, 0, 1, 2, 3 if env.is_5 else 2]


async def a_time_between_messages_has_a_lower_and_an_upper_offset(env: CaseEnv) -> None:
    async with env.client() as client:
        for _ in range(3):
            await send(client, env, b"body")
            await asyncio.sleep(0.06)
        messages = await everything(client, env, 3)
        second = round(messages[1].store_time.timestamp() * 1000)
        found = {
            (boundary, time): await search(client, env, boundary, time)
            for boundary in ("LOWER", "UPPER")
            for time in (0, second - 1, second, second + 1, FUTURE_MILLIS)
        }

    lower = [found["LOWER", time] for time in (0, second - 1, second, second + 1, FUTURE_MILLIS)]
    upper = [found["UPPER", time] for time in (0, second - 1, second, second + 1, FUTURE_MILLIS)]
    if env.is_5:
        assert (lower, upper) == ([0, 1, 1, 2, 3], [0, 0, 1, 1, 2])
    else:  # 4.9 returns the nearest message
        assert lower == upper == [0, 1, 1, 1, 2]


async def search(client: RawClient, env: CaseEnv, boundary: str, time: int) -> int:
    fields = {"topic": env.topic, "queueId": "0", "timestamp": str(time), "boundaryType": boundary}
    opaque = client.send_fields(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)
    return read_header(await client.answer(opaque), OffsetResponse).offset


async def unknown_queues_and_topics_have_no_messages(env: CaseEnv) -> None:
    async with env.client() as client:
        for topic, queue_id in ((env.topic, 99), (f"{env.topic}-unknown", 0)):
            of: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
            assert await offset(client, GetMaxOffset(**of)) == 0
            assert await offset(client, GetMinOffset(**of)) == 0
            assert await offset(client, SearchOffset(**of, timestamp=FUTURE_MILLIS)) == 0
            earliest = await client.ask(GetEarliestMsgStoretime(**of))
            assert read_header(earliest, TimestampResponse).timestamp == -1


async def the_earliest_store_time_is_that_of_the_first_message(env: CaseEnv) -> None:
    asked = GetEarliestMsgStoretime(topic=env.topic, queue_id=0)
    async with env.client() as client:
        empty = read_header(await client.ask(asked), TimestampResponse).timestamp
        await send(client, env, b"body")
        (message,) = await everything(client, env, 1)
        first = read_header(await client.ask(asked), TimestampResponse).timestamp

    assert (empty, first) == (-1, round(message.store_time.timestamp() * 1000))


CASES: tuple[Case, ...] = (
    without_a_commit_an_empty_queue_has_no_offset_from_5_on,
    a_negative_commit_counts_as_none,
    without_a_commit_a_young_queue_begins_at_0_unless_told_not_to,
    a_commit_is_what_is_read_next_even_backwards_or_beyond,
    a_commit_is_the_groups_and_the_queues_own,
    a_oneway_commit_takes_effect,
    brokers_from_5_refuse_commits_for_unknown_topics_and_groups,
    a_pull_makes_its_group_known,
    a_time_between_messages_has_a_lower_and_an_upper_offset,
    unknown_queues_and_topics_have_no_messages,
    a_queue_returns_its_first_and_next_offset,
    an_offset_is_found_by_store_time,
    the_earliest_store_time_is_that_of_the_first_message,
)
