"""Queries: messages by key, unique key and position."""

from __future__ import annotations

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.admin import QueryMessage, ViewMessage
from tests.fakes.conformance.case_env import (
    Case,
    CaseEnv,
    eventually,
    everything,
    messages_in,
    send_header,
)
from tests.fakes.raw_client import RawClient

FAR_MILLIS = 4_000_000_000_000
MISSING = 22


async def store(client: RawClient, env: CaseEnv) -> list[int]:
    """Store five messages with keys; return their log offsets."""
    offsets = []
    for number in range(5):
        properties = {"KEYS": f"all k{number}", "UNIQ_KEY": f"U{number}", "TAGS": "t"}
        header = send_header(env, properties=encode_properties(properties))
        answer = await client.ask(header, b"%d" % number)
        offsets.append(int(answer.ext_fields()["msgId"][16:], 16))
    await everything(client, env, 5)

    async def indexed() -> bool:
        return len(bodies(await query(client, env, "all"), env)) == 5

    assert await eventually(indexed)
    return offsets


async def query(client: RawClient, env: CaseEnv, key: str, **changes: object) -> Command:
    fields: dict[str, object] = {
        "topic": env.topic,
        "key": key,
        "max_num": 32,
        "begin_timestamp": 0,
        "end_timestamp": FAR_MILLIS,
    }
    return await client.ask(QueryMessage(**fields | changes))  # type: ignore[arg-type]


def bodies(answer: Command, env: CaseEnv) -> list[bytes]:
    return [message.body for message in messages_in(answer, env)]


async def keys_find_messages_in_the_order_of_their_storage(env: CaseEnv) -> None:
    async with env.client() as client:
        offsets = await store(client, env)
        everyone = await query(client, env, "all")
        single = await query(client, env, "k3")
        words = await query(client, env, "all k3")

    assert bodies(everyone, env) == [b"0", b"1", b"2", b"3", b"4"]
    fields = everyone.ext_fields()
    assert int(fields["indexLastUpdatePhyoffset"]) == offsets[-1]
    assert int(fields["indexLastUpdateTimestamp"]) > 0
    assert bodies(single, env) == [b"3"]
    assert words.code == MISSING


async def keys_and_unique_keys_share_an_index(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        found = [
            await query(client, env, "U2"),
            await query(client, env, "U2", by_id=True),
            await query(client, env, "k2", by_id=True),
            await query(client, env, "k2", by_id=False),
        ]

    assert [bodies(answer, env) for answer in found] == [[b"2"]] * 4


async def tags_are_indexed_from_5_on(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        answer = await query(client, env, "t", index_type="T")

    assert len(bodies(answer, env)) == (5 if env.is_5 else 0)


async def a_limited_query_returns_the_newest_messages(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        two = await query(client, env, "all", max_num=2)
        none = await query(client, env, "all", max_num=0)

    assert bodies(two, env) == [b"3", b"4"]
    assert none.code == MISSING


async def queries_look_at_times_and_the_topic(env: CaseEnv) -> None:
    async with env.client() as client:
        await store(client, env)
        (message, *_) = await everything(client, env, 5)
        stored_ms = int(message.store_time.timestamp() * 1000)
        before = await query(client, env, "all", end_timestamp=stored_ms - 10_000)
        after = await query(client, env, "all", begin_timestamp=stored_ms + 100_000)
        other = await query(client, env, "all", topic=f"{env.topic}-unknown")
        unknown = await query(client, env, "nobody")

    for answer in (before, after, other, unknown):
        assert answer.code == MISSING
        assert answer.remark == "can not find message, maybe time range not correct"
        assert answer.ext_fields() == {
            "indexLastUpdatePhyoffset": "0",
            "indexLastUpdateTimestamp": "0",
        }


async def a_message_is_viewed_by_its_log_offset(env: CaseEnv) -> None:
    async with env.client() as client:
        offsets = await store(client, env)
        found = await client.ask(ViewMessage(topic=env.topic, offset=offsets[2]))
        fields = {"offset": str(offsets[2])}
        short = await client.answer(client.send_fields(RequestCode.VIEW_MESSAGE_BY_ID, fields))
        wrong = [
            await client.ask(ViewMessage(topic=env.topic, offset=offset))
            for offset in (offsets[2] + 1, 10**15, -5)
        ]

    assert bodies(found, env) == bodies(short, env) == [b"2"]
    assert [answer.code for answer in wrong] == [1, 1, 1]
    assert wrong[2].remark == "can not find message by the offset, -5"


CASES: tuple[Case, ...] = (
    keys_find_messages_in_the_order_of_their_storage,
    keys_and_unique_keys_share_an_index,
    tags_are_indexed_from_5_on,
    a_limited_query_returns_the_newest_messages,
    queries_look_at_times_and_the_topic,
    a_message_is_viewed_by_its_log_offset,
)
