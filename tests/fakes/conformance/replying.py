"""Request-reply: brokers push replies to the client named in them."""

from __future__ import annotations

import msgspec

from rocketmq_aio.model.properties import encode_properties, parse_properties
from rocketmq_aio.protocol.bodies import HeartbeatData, ProducerData
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.from_broker import PushReplyMessage
from rocketmq_aio.protocol.requests.groups import Heartbeat
from rocketmq_aio.protocol.requests.send import SendReplyMessage
from tests.fakes.conformance.case_env import Case, CaseEnv, everything, send, send_header
from tests.fakes.raw_client import RawClient


def asker_of(env: CaseEnv) -> str:
    return f"127.0.0.1@{env.group}"


async def introduce(client: RawClient, env: CaseEnv) -> None:
    """Register as a producer that replies can be pushed to."""
    data = HeartbeatData(
        client_id=asker_of(env), producer_data_set=[ProducerData(group_name=env.group)]
    )
    assert (await client.ask(Heartbeat(), msgspec.json.encode(data))).code == 0


async def reply_topic(client: RawClient, env: CaseEnv) -> str:
    """Return the reply topic of the broker's cluster, which stored replies have."""
    await send(client, env, b"request")
    (message,) = await everything(client, env, 1)
    return f"{message.properties['CLUSTER']}_REPLY_TOPIC"


async def send_reply(client: RawClient, env: CaseEnv, topic: str) -> int:
    """Send a reply to the client of `introduce`; return its opaque."""
    reply = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": asker_of(env)}
    header = send_header(env, topic=topic, flag=7, properties=encode_properties(reply))
    return client.send(SendReplyMessage(**msgspec.structs.asdict(header)), b"answer")


async def a_reply_is_pushed_to_who_asked(env: CaseEnv) -> None:
    async with env.client() as asker, env.client() as replier:
        await introduce(asker, env)
        opaque = await send_reply(replier, env, await reply_topic(replier, env))
        pushed = await asker.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
        asker.respond(pushed)
        answer = await replier.answer(opaque)
    header = read_header(pushed, PushReplyMessage)
    properties = parse_properties((header.properties or "").encode())

    assert (answer.code, pushed.body) == (0, b"answer")
    assert (header.flag, header.producer_group) == (7, "conformance")
    assert properties["CORRELATION_ID"] == "c-1"
    assert properties.keys() >= {"PUSH_REPLY_TIME", "REPLY_TO_CLIENT", "MSG_TYPE"}
    assert header.born_host.startswith("127.0.0.1:")
    assert header.store_host == env.broker


async def a_reply_that_is_not_taken_is_an_error(env: CaseEnv) -> None:
    async with env.client() as asker, env.client() as replier:
        await introduce(asker, env)
        opaque = await send_reply(replier, env, await reply_topic(replier, env))
        asker.respond(await asker.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT), code=1)
        answer = await replier.answer(opaque)

    assert answer.code == 1


async def a_reply_to_nobody_is_an_error_and_stored(env: CaseEnv) -> None:
    async with env.client() as replier:
        opaque = await send_reply(replier, env, await reply_topic(replier, env))
        answer: Command = await replier.answer(opaque)

    assert answer.code == 1
    assert "not found" in (answer.remark or "")
    assert answer.ext_fields()["msgId"]


CASES: tuple[Case, ...] = (
    a_reply_is_pushed_to_who_asked,
    a_reply_that_is_not_taken_is_an_error,
    a_reply_to_nobody_is_an_error_and_stored,
)
