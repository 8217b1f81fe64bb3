"""Delayed messages, sent-back messages and dead letters."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import read_route
from rocketmq_aio.protocol.codes import PULL_SUBSCRIPTION
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack
from tests.fakes.conformance.administration import put_group, put_topic, topics
from tests.fakes.conformance.case_env import (
    Case,
    CaseEnv,
    eventually,
    everything,
    pull_header,
    send_header,
)
from tests.fakes.conformance.locking import lock
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.raw_client import RawClient

UPDATE_GROUP = 200
FIRST_DELAY = timedelta(seconds=0.9)  # level 1 is 1 s; brokers check ten times a second
LATE_SECONDS = 20.0  # for a busy machine
ID = "7F0000010000" + "0" * 20
SENT = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": ID, "own": "x"}


async def stored(client: RawClient, env: CaseEnv) -> MessageExt:
    """Store a message and return it."""
    header = send_header(env, properties=encode_properties(SENT), flag=5)
    assert (await client.ask(header, b"body")).code == 0
    return (await everything(client, env, 1))[0]


async def send_back(
    client: RawClient, env: CaseEnv, message: MessageExt, level: int, **changes: object
) -> Command:
    fields: dict[str, object] = {
        "offset": message.commit_log_offset,
        "group": env.group,
        "delay_level": level,
        "origin_topic": message.queue.topic,
        "max_reconsume_times": 16,
    }
    return await client.ask(ConsumerSendMsgBack(**fields | changes))  # type: ignore[arg-type]


async def send_retry(client: RawClient, env: CaseEnv, times: int, limit: int) -> None:
    """Send a copy to the retry topic, as a client does when sending back fails."""
    header = send_header(
        env,
        -1,
        topic=retries(env),
        properties=encode_properties(SENT),
        reconsume_times=times,
        max_reconsume_times=limit,
    )
    assert (await client.ask(header, b"copy")).code == 0


def retries(env: CaseEnv) -> str:
    return f"%RETRY%{env.group}"


def dead_letters(env: CaseEnv) -> str:
    return f"%DLQ%{env.group}"


async def found(client: RawClient, env: CaseEnv, topic: str, count: int = 1) -> list[MessageExt]:
    """Wait for *count* messages of a topic with one queue; return them."""
    messages: list[MessageExt] = []
    queue = MessageQueue(topic, "", 0)

    async def are_there() -> bool:
        header = pull_header(env, 0, topic=topic, sys_flag=PULL_SUBSCRIPTION)
        answer = await client.ask(header)
        messages[:] = decode_messages(answer.body, queue)[0] if answer.code == 0 else []
        return len(messages) >= count

    assert await eventually(are_there, LATE_SECONDS), topic
    return messages


async def a_delayed_message_is_delivered_after_its_delay(env: CaseEnv) -> None:
    async with env.client() as client:
        await stored(client, env)
        header = send_header(env, properties=encode_properties(SENT | {"DELAY": "1"}))
        assert (await client.ask(header, b"late")).code == 0
        first, late = await found(client, env, env.topic, 2)

    assert late.store_time - first.store_time >= FIRST_DELAY
    assert (late.body, late.message_id, late.queue_offset) == (b"late", ID, 1)
    real = {"DELAY": "1", "REAL_TOPIC": env.topic, "REAL_QID": "0"}
    assert late.properties.items() >= (SENT | real).items()


async def the_heartbeat_of_a_group_makes_its_retry_topic(env: CaseEnv) -> None:
    async with env.client() as client, RawClient(env.namesrv) as names:
        await heartbeat(client, env, "c@1")

        async def has_a_queue() -> bool:
            asked = GetRouteInfo(topic=retries(env), accept_standard_json_only=True)
            answer = await names.ask(asked)
            queues = read_route(answer.body).queue_datas if answer.code == 0 else []
            return [(q.read_queue_nums, q.write_queue_nums, q.perm) for q in queues] == [(1, 1, 6)]

        assert await eventually(has_a_queue)


async def a_retry_topic_keeps_its_permission(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        assert (await put_topic(client, retries(env), perm="4")).code == 0
        await heartbeat(client, env, "c@1")
        assert (await topics(client))[retries(env)]["perm"] == 4


async def a_message_sent_back_is_redelivered_after_its_delay(env: CaseEnv) -> None:
    async with env.client() as client:
        message = await stored(client, env)
        answer = await send_back(client, env, message, 1)
        (again,) = await found(client, env, retries(env))

    assert (answer.code, answer.body) == (0, b"")
    assert again.store_time - message.store_time >= FIRST_DELAY
    assert (again.body, again.flag, again.message_id) == (b"body", 5, ID)
    assert (again.reconsume_times, again.born_time) == (1, message.born_time)
    origin = {"RETRY_TOPIC": env.topic, "ORIGIN_MESSAGE_ID": message.offset_message_id}
    assert again.properties.items() >= (SENT | origin | {"DELAY": "1", "WAIT": "false"}).items()


async def a_second_return_counts_on_and_keeps_the_first_id(env: CaseEnv) -> None:
    async with env.client() as client:
        message = await stored(client, env)
        await send_back(client, env, message, 1)
        (again,) = await found(client, env, retries(env))
        await send_back(client, env, again, 1)
        _, third = await found(client, env, retries(env), 2)

    assert third.reconsume_times == 2
    assert third.property("RETRY_TOPIC") == env.topic
    assert third.property("ORIGIN_MESSAGE_ID") == message.offset_message_id


async def a_negative_level_is_the_end(env: CaseEnv) -> None:
    async with env.client() as client:
        message = await stored(client, env)
        await send_back(client, env, message, -1)
        (dead,) = await found(client, env, dead_letters(env))

    assert (dead.body, dead.flag, dead.reconsume_times) == (b"body", 5, 1)
    assert dead.properties.items() >= (SENT | {"RETRY_TOPIC": env.topic, "DELAY": "0"}).items()


async def the_limit_is_the_end(env: CaseEnv) -> None:
    async with env.client() as client:
        message = await stored(client, env)
        await send_back(client, env, message, 1, max_reconsume_times=0)

        assert len(await found(client, env, dead_letters(env))) == 1


async def without_a_limit_of_the_client_that_of_the_group_is_the_end(env: CaseEnv) -> None:
    async with env.client() as client:
        await put_group(client, env.group, ',"retryMaxTimes":0')
        message = await stored(client, env)
        assert (await send_back(client, env, message, 0, max_reconsume_times=None)).code == 0
        (dead,) = await found(client, env, dead_letters(env))

    assert dead.body == b"body"


async def only_brokers_before_5_find_the_topic_of_the_dead_themselves(env: CaseEnv) -> None:
    async with env.client() as client:
        message = await stored(client, env)
        answer = await send_back(client, env, message, -1, origin_topic=None)

    assert answer.code == (1 if env.is_5 else 0)


async def an_offset_without_a_message_is_an_error(env: CaseEnv) -> None:
    async with env.client() as client:
        message = await stored(client, env)
        answer = await send_back(client, env, message, 1, offset=987_654_321)

    assert (answer.code, answer.remark) == (1, "look message by offset failed, 987654321")


async def a_group_without_retry_queues_loses_what_is_sent_back(env: CaseEnv) -> None:
    config = msgspec.json.encode({"groupName": env.group, "retryQueueNums": 0})
    async with env.client() as client, RawClient(env.namesrv) as names:
        assert (await client.answer(client.send_fields(UPDATE_GROUP, {}, config))).code == 0
        await heartbeat(client, env, "c@1")
        message = await stored(client, env)
        lost = [await send_back(client, env, message, level) for level in (1, -1)]
        copy = await client.ask(send_header(env, -1, topic=retries(env)), b"copy")
        dead = await names.ask(GetRouteInfo(topic=dead_letters(env)))

        async def is_a_topic_without_queues() -> bool:
            asked = GetRouteInfo(topic=retries(env), accept_standard_json_only=True)
            answer = await names.ask(asked)
            queues = read_route(answer.body).queue_datas if answer.code == 0 else []
            return [each.write_queue_nums for each in queues] == [0]

        assert await eventually(is_a_topic_without_queues)
    assert [answer.code for answer in lost] == [0, 0]
    assert (copy.code, dead.code) == (1, 17)


async def a_copy_beyond_its_limit_is_dead(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await send_retry(client, env, 2, 1)
        (dead,) = await found(client, env, dead_letters(env))

    assert (dead.body, dead.reconsume_times) == (b"copy", 2)
    assert dead.properties.items() >= SENT.items()


async def a_copy_at_its_limit_is_dead_before_5(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await send_retry(client, env, 1, 1)
        topic = retries(env) if env.is_5 else dead_letters(env)

        assert [each.body for each in await found(client, env, topic)] == [b"copy"]


async def a_copy_of_a_group_with_locks_is_dead_from_5(env: CaseEnv) -> None:
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await lock(client, env, "c@1", 0)
        await send_retry(client, env, 1, 16)
        topic = dead_letters(env) if env.is_5 else retries(env)

        assert [each.body for each in await found(client, env, topic)] == [b"copy"]


CASES: tuple[Case, ...] = (
    a_delayed_message_is_delivered_after_its_delay,
    the_heartbeat_of_a_group_makes_its_retry_topic,
    a_retry_topic_keeps_its_permission,
    a_message_sent_back_is_redelivered_after_its_delay,
    a_second_return_counts_on_and_keeps_the_first_id,
    a_negative_level_is_the_end,
    the_limit_is_the_end,
    without_a_limit_of_the_client_that_of_the_group_is_the_end,
    only_brokers_before_5_find_the_topic_of_the_dead_themselves,
    an_offset_without_a_message_is_an_error,
    a_group_without_retry_queues_loses_what_is_sent_back,
    a_copy_beyond_its_limit_is_dead,
    a_copy_at_its_limit_is_dead_before_5,
    a_copy_of_a_group_with_locks_is_dead_from_5,
)
