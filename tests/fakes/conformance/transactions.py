"""Half messages, decisions and checks.

Real brokers ask by the clock; a fake asks when *ask* is called, which does nothing for real ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.bodies import HeartbeatData, ProducerData
from rocketmq_aio.protocol.codes import (
    PULL_SUBSCRIPTION,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RequestCode,
)
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import decode_message
from rocketmq_aio.protocol.requests.from_broker import CheckTransactionState
from rocketmq_aio.protocol.requests.groups import Heartbeat
from rocketmq_aio.protocol.requests.send import EndTransaction, SendMessageResponse
from tests.fakes.conformance.case_env import (
    CaseEnv,
    everything,
    is_unanswered,
    messages_in,
    pull_header,
    send_header,
)
from tests.fakes.raw_client import RawClient

CHECK_SECONDS: Final = 60.0  # real brokers check periodically
LATE_SECONDS: Final = 1.2  # more than the immunity time
ILLEGAL_OPERATION: Final = 604
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
ID: Final = "7F0000010000" + "0" * 20

Ask = Callable[[], Awaitable[object]]
TransactionCase = Callable[[CaseEnv, Ask], Awaitable[None]]


class Half(NamedTuple):
    """Position of a half message, from its send or a check."""

    table_offset: int
    log_offset: int


async def join(client: RawClient, env: CaseEnv, client_id: str = "p@1") -> None:
    """Register as a producer of the group."""
    data = HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name=env.group)],
        consumer_data_set=[],
    )
    assert (await client.ask(Heartbeat(), msgspec.json.encode(data))).code == 0


async def send_half(client: RawClient, env: CaseEnv, body: bytes = b"half", **more: str) -> Half:
    properties = {"UNIQ_KEY": ID, "TAGS": "t", "TRAN_MSG": "true", "PGROUP": env.group, **more}
    header = send_header(
        env,
        2,
        sys_flag=TRANSACTION_PREPARED,
        properties=encode_properties(properties),
        born_timestamp=time.time_ns() // 1_000_000,
    )
    command = await client.ask(header, body)
    assert command.code == 0, command
    answer = read_header(command, SendMessageResponse)
    assert (answer.queue_id, answer.transaction_id) == (2, ID if env.is_5 else None)
    return Half(answer.queue_offset, int(answer.msg_id[-16:], 16))


def end(env: CaseEnv, half: Half, flag: int, **changes: object) -> EndTransaction:
    fields: dict[str, object] = {
        "topic": env.topic,
        "producer_group": env.group,
        "tran_state_table_offset": half.table_offset,
        "commit_log_offset": half.log_offset,
        "commit_or_rollback": flag,
        "msg_id": ID,
        "transaction_id": ID,
    }
    return EndTransaction(**fields | changes)  # type: ignore[arg-type]


async def check_of(client: RawClient, ask: Ask) -> Command:
    await ask()
    return await client.request(RequestCode.CHECK_TRANSACTION_STATE, CHECK_SECONDS)


async def stored(client: RawClient, env: CaseEnv, count: int) -> list[MessageExt]:
    """Wait for *count* messages in queue 2; return them."""
    found: list[MessageExt] = []
    while len(found) < count:
        command = await client.ask(pull_header(env, len(found), queue_id=2))
        if command.code == 0:
            found += messages_in(command, env)
    return found


async def nothing_is_visible(client: RawClient, env: CaseEnv) -> bool:
    """Return whether queue 2 is empty; call it after another message was seen to be stored."""
    header = pull_header(env, 0, queue_id=2, sys_flag=PULL_SUBSCRIPTION)
    return (await client.ask(header)).code != 0


async def something_else_is_stored(client: RawClient, env: CaseEnv) -> None:
    assert (await client.ask(send_header(env, 0), b"else")).code == 0
    await everything(client, env, 1)


async def a_half_message_is_seen_after_its_commit(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        await something_else_is_stored(client, env)
        assert await nothing_is_visible(client, env)
        answer = await client.ask(end(env, half, TRANSACTION_COMMIT))
        (message,) = await stored(client, env, 1)

    assert (answer.code, answer.body) == (0, b"")
    assert (message.body, message.message_id, message.tags) == (b"half", ID, "t")
    assert message.property("PGROUP") == env.group
    assert message.property("TRAN_MSG") == "true"  # no longer a half message
    place = (None, None) if env.is_5 else (env.topic, "2")
    assert (message.property("REAL_TOPIC"), message.property("REAL_QID")) == place
    assert message.property("__transactionId__") == (ID if env.is_5 else None)
    assert message.sys_flag == TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == half.table_offset


async def a_half_message_is_never_seen_after_its_rollback(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        answer = await client.ask(end(env, half, TRANSACTION_ROLLBACK))
        await something_else_is_stored(client, env)

        assert answer.code == 0
        assert await nothing_is_visible(client, env)


async def a_broker_remembers_no_decision(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        flags = (TRANSACTION_ROLLBACK, TRANSACTION_COMMIT, TRANSACTION_COMMIT)
        answers = [await client.ask(end(env, half, flag)) for flag in flags]

        assert [answer.code for answer in answers] == [0, 0, 0]
        assert len(await stored(client, env, 2)) == 2


async def unknown_is_not_answered(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        opaque = client.send(end(env, half, 0))

        assert await is_unanswered(client, opaque)
        assert (await client.ask(end(env, half, TRANSACTION_ROLLBACK))).code == 0


async def a_decision_about_something_else_is_refused(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        nowhere = half._replace(log_offset=10**15)
        beside = half._replace(table_offset=half.table_offset + 1)
        wrong = (
            end(env, nowhere, TRANSACTION_COMMIT),
            end(env, beside, TRANSACTION_COMMIT),
            end(env, half, TRANSACTION_COMMIT, producer_group="others"),
        )
        refused = [await client.ask(each) for each in wrong]
        await client.ask(end(env, half, TRANSACTION_ROLLBACK))

    assert [(each.code, each.remark) for each in refused] == [
        (1, "Find prepared transaction message failed"),
        (1, "The transaction state table offset wrong"),
        (1, "The producer group wrong"),
    ]


async def a_decision_after_the_immunity_time_is_refused(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        await asyncio.sleep(LATE_SECONDS)
        late = await client.ask(end(env, half, TRANSACTION_ROLLBACK))
        checked = end(env, half, TRANSACTION_COMMIT, from_transaction_check=True)
        answer = await client.ask(checked)
        (message,) = await stored(client, env, 1)

    assert late.code == (ILLEGAL_OPERATION if env.is_5 else 0)
    assert (answer.code, message.body) == (0, b"half")


async def a_check_shows_the_message_and_where_it_is_now(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        command = await check_of(client, ask)
        check = read_header(command, CheckTransactionState)
        now = Half(check.tran_state_table_offset, check.commit_log_offset)
        message = decode_message(command.body, "")
        await client.ask(end(env, now, TRANSACTION_COMMIT, from_transaction_check=True))
        (visible,) = await stored(client, env, 1)

    assert command.is_oneway
    assert now > half
    assert (check.msg_id, check.transaction_id) == (ID, ID)
    assert (check.topic, check.broker_name is None) == (
        (HALF_TOPIC, False) if env.is_5 else (None, True)
    )
    assert (message.topic, message.queue.queue_id, message.body) == (env.topic, 2, b"half")
    assert (message.message_id, message.commit_log_offset) == (ID, now.log_offset)
    assert message.queue_offset == now.table_offset
    assert message.property("PGROUP") == env.group
    assert visible.body == b"half"


async def producers_of_a_group_are_checked_in_turn(env: CaseEnv, ask: Ask) -> None:
    async with env.client() as first, env.client() as second:
        await join(first, env)
        await join(second, env, "p@2")
        for body in (b"one", b"two"):
            await send_half(first, env, body)
        await ask()
        for client in (first, second):
            await client.request(RequestCode.CHECK_TRANSACTION_STATE, CHECK_SECONDS)


async def a_commit_where_the_message_was_before_leaves_the_broker_asking(
    env: CaseEnv, ask: Ask
) -> None:
    async with env.client() as client:
        await join(client, env)
        half = await send_half(client, env)
        await check_of(client, ask)
        assert (await client.ask(end(env, half, TRANSACTION_COMMIT))).code == 0
        check = read_header(await check_of(client, ask), CheckTransactionState)
        now = Half(check.tran_state_table_offset, check.commit_log_offset)
        await client.ask(end(env, now, TRANSACTION_ROLLBACK, from_transaction_check=True))

        assert len(await stored(client, env, 1)) == 1


CASES: tuple[TransactionCase, ...] = (
    a_half_message_is_seen_after_its_commit,
    a_half_message_is_never_seen_after_its_rollback,
    a_broker_remembers_no_decision,
    unknown_is_not_answered,
    a_decision_about_something_else_is_refused,
    a_decision_after_the_immunity_time_is_refused,
    producers_of_a_group_are_checked_in_turn,
    a_check_shows_the_message_and_where_it_is_now,
    a_commit_where_the_message_was_before_leaves_the_broker_asking,
)
