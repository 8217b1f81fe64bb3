"""Queries: messages by key, unique key and position."""

from __future__ import annotations

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.admin import QueryMessage, ViewMessage
from tests.fakes.conformance.ground import (
    Case,
    Ground,
    eventually,
    everything,
    messages_in,
    send_header,
)
from tests.fakes.raw_client import RawClient

FAR_MILLIS = 4_000_000_000_000
MISSING = 22


async def store(client: RawClient, ground: Ground) -> list[int]:
    """Store five messages with keys; return their log offsets."""
    offsets = []
    for number in range(5):
        properties = {"KEYS": f"all k{number}", "UNIQ_KEY": f"U{number}", "TAGS": "t"}
        header = send_header(ground, properties=encode_properties(properties))
        answer = await client.ask(header, b"%d" % number)
        offsets.append(int(answer.ext_fields()["msgId"][16:], 16))
    await everything(client, ground, 5)

    async def indexed() -> bool:
        return len(bodies(await query(client, ground, "all"), ground)) == 5

    assert await eventually(indexed)
    return offsets


async def query(client: RawClient, ground: Ground, key: str, **changes: object) -> Command:
    fields: dict[str, object] = {
        "topic": ground.topic,
        "key": key,
        "max_num": 32,
        "begin_timestamp": 0,
        "end_timestamp": FAR_MILLIS,
    }
    return await client.ask(QueryMessage(**fields | changes))  # type: ignore[arg-type]


def bodies(answer: Command, ground: Ground) -> list[bytes]:
    return [message.body for message in messages_in(answer, ground)]


async def keys_find_messages_in_the_order_of_their_storage(ground: Ground) -> None:
    async with ground.client() as client:
        offsets = await store(client, ground)
        everyone = await query(client, ground, "all")
        single = await query(client, ground, "k3")
        words = await query(client, ground, "all k3")

    assert bodies(everyone, ground) == [b"0", b"1", b"2", b"3", b"4"]
    fields = everyone.ext_fields()
    assert int(fields["indexLastUpdatePhyoffset"]) == offsets[-1]
    assert int(fields["indexLastUpdateTimestamp"]) > 0
    assert bodies(single, ground) == [b"3"]
    assert words.code == MISSING


async def keys_and_unique_keys_share_an_index(ground: Ground) -> None:
    async with ground.client() as client:
        await store(client, ground)
        found = [
            await query(client, ground, "U2"),
            await query(client, ground, "U2", by_id=True),
            await query(client, ground, "k2", by_id=True),
            await query(client, ground, "k2", by_id=False),
        ]

    assert [bodies(answer, ground) for answer in found] == [[b"2"]] * 4


async def tags_are_indexed_from_5_on(ground: Ground) -> None:
    async with ground.client() as client:
        await store(client, ground)
        answer = await query(client, ground, "t", index_type="T")

    assert len(bodies(answer, ground)) == (5 if ground.is_5 else 0)


async def a_limited_query_returns_the_newest_messages(ground: Ground) -> None:
    async with ground.client() as client:
        await store(client, ground)
        two = await query(client, ground, "all", max_num=2)
        none = await query(client, ground, "all", max_num=0)

    assert bodies(two, ground) == [b"3", b"4"]
    assert none.code == MISSING


async def queries_look_at_times_and_the_topic(ground: Ground) -> None:
    async with ground.client() as client:
        await store(client, ground)
        (message, *_) = await everything(client, ground, 5)
        stored_ms = int(message.store_time.timestamp() * 1000)
        before = await query(client, ground, "all", end_timestamp=stored_ms - 10_000)
        after = await query(client, ground, "all", begin_timestamp=stored_ms + 100_000)
        other = await query(client, ground, "all", topic=f"{ground.topic}-unknown")
        unknown = await query(client, ground, "nobody")

    for answer in (before, after, other, unknown):
        assert answer.code == MISSING
        assert answer.remark == "can not find message, maybe time range not correct"
        assert answer.ext_fields() == {
            "indexLastUpdatePhyoffset": "0",
            "indexLastUpdateTimestamp": "0",
        }


async def a_message_is_viewed_by_its_log_offset(ground: Ground) -> None:
    async with ground.client() as client:
        offsets = await store(client, ground)
        found = await client.ask(ViewMessage(topic=ground.topic, offset=offsets[2]))
        fields = {"offset": str(offsets[2])}
        short = await client.answer(client.send_fields(RequestCode.VIEW_MESSAGE_BY_ID, fields))
        wrong = [
            await client.ask(ViewMessage(topic=ground.topic, offset=offset))
            for offset in (offsets[2] + 1, 10**15, -5)
        ]

    assert bodies(found, ground) == bodies(short, ground) == [b"2"]
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
