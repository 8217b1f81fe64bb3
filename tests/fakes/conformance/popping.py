"""Pops: messages found, acknowledged and redelivered.  Not known to brokers before 5.0."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import find_property
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import BatchAckRequest
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.receipt import (
    Receipt,
    batch_acks,
    order_count,
    parse_receipt,
    read_info,
    receipts,
)
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.offsets import UpdateConsumerOffset
from rocketmq_aio.protocol.requests.pop import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from tests.fakes.conformance.administration import put_group, reset_offset
from tests.fakes.conformance.case_env import Case, CaseEnv, eventually, is_unanswered, send
from tests.fakes.conformance.offsets import offset, query
from tests.fakes.raw_client import RawClient

NOTHING: Final = 210
UNKNOWN: Final = 3
AGAIN_SECONDS: Final = 40.0  # real brokers redeliver some seconds late
SOON_MILLIS: Final = 1000
LONG_MILLIS: Final = 60_000

Got = list[tuple[bytes, Receipt]]


def pop_header(env: CaseEnv, **changes: object) -> PopMessage:
    fields: dict[str, object] = {
        "consumer_group": env.group,
        "topic": env.topic,
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": LONG_MILLIS,
        "poll_time": 0,
        "born_time": time.time_ns() // 1_000_000,
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
        "order": False,
    }
    return PopMessage(**fields | changes)  # type: ignore[arg-type]


async def pop(client: RawClient, env: CaseEnv, **changes: object) -> Got:
    """Return bodies and receipts; empty for a response without messages."""
    return got(await client.ask(pop_header(env, **changes)), env)


def got(answer: Command, env: CaseEnv) -> Got:
    if answer.code == NOTHING:
        return []
    assert answer.code == 0, answer
    messages, fault = decode_messages(answer.body, MessageQueue(env.topic, "broker-a", -1))
    assert fault is None
    for each in messages:
        number = int.from_bytes(each.head[12:16], "big")
        each.queue = MessageQueue(env.topic, "broker-a", number)
    fields = read_header(answer, PopMessageResponse)
    made = receipts(messages, fields, "broker-a")
    return [(m.body, receipt) for m, receipt in zip(messages, made, strict=True)]


async def popped(client: RawClient, env: CaseEnv, count: int, **changes: object) -> Got:
    """Return *count* messages: brokers may return fewer per pop, and later."""
    found: Got = []

    async def is_enough() -> bool:
        found.extend(await pop(client, env, **changes))
        return len(found) >= count

    assert await eventually(is_enough, AGAIN_SECONDS), found
    return found


def ack_header(env: CaseEnv, receipt: Receipt, **changes: object) -> AckMessage:
    fields: dict[str, object] = {
        "consumer_group": env.group,
        "topic": receipt.stored_topic(env.group, env.topic),
        "queue_id": receipt.queue_id,
        "extra_info": str(receipt),
        "offset": receipt.offset,
    }
    return AckMessage(**fields | changes)  # type: ignore[arg-type]


async def change(
    client: RawClient, env: CaseEnv, receipt: Receipt, millis: int, *, suspend: bool | None = None
) -> Receipt:
    ack = ack_header(env, receipt)
    fields = {name: getattr(ack, name) for name in ack.__struct_fields__}
    header = ChangeInvisibleTime(**fields, invisible_time=millis, suspend=suspend)
    answer = await client.ask(header)
    assert answer.code == 0, answer
    return receipt.changed(read_header(answer, ChangeInvisibleTimeResponse))


async def store(client: RawClient, env: CaseEnv, *bodies: bytes, tag: str = "") -> None:
    for body in bodies:
        await send(client, env, body, tag)


def bodies(found: Got) -> list[bytes]:
    return [body for body, _ in found]


async def is_settled(client: RawClient, env: CaseEnv, receipt: Receipt) -> None:
    """Acknowledge a message so that it is not redelivered later in the case."""
    assert (await client.ask(ack_header(env, receipt))).code == 0


async def is_unknown(env: CaseEnv) -> bool:
    """Whether the broker rejects pop requests as unknown."""
    if env.is_5:
        return False
    requests = (
        pop_header(env),
        ack_header(env, parse_receipt("0 1 2 3 0 broker-a 0 0")),
        BatchAckMessage(),
    )
    async with env.client() as client:
        codes = [(await client.ask(request)).code for request in requests]
        change_code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        codes.append((await client.answer(client.send_fields(change_code))).code)
    assert set(codes) == {UNKNOWN}
    return True


# --- finding -------------------------------------------------------------------------------------


async def a_popped_message_is_invisible_to_its_group_alone(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1", b"2")
        found = await popped(client, env, 2)
        again = await pop(client, env)
        others = await popped(client, env, 2, consumer_group=f"{env.group}-2")

    assert (bodies(found), again, bodies(others)) == ([b"1", b"2"], [], [b"1", b"2"])
    assert [r.offset for _, r in found] == [0, 1]
    assert {(r.marker, r.queue_id, r.invisible_time) for _, r in found} == {("0", 0, LONG_MILLIS)}


async def a_pop_returns_at_most_the_requested_number(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1", b"2", b"3")
        first = await popped(client, env, 1, max_msg_nums=1)
        rest = await popped(client, env, 2)

    assert (bodies(first), bodies(rest)) == ([b"1"], [b"2", b"3"])


async def a_pop_without_messages_is_held_until_one_arrives(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        opaque = client.send(pop_header(env, poll_time=8000))
        assert await is_unanswered(client, opaque)
        await store(client, env, b"awaited")

        assert bodies(got(await client.answer(opaque), env)) == [b"awaited"]


async def a_held_pop_ends_empty(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        opaque = client.send(pop_header(env, poll_time=1000))
        assert await is_unanswered(client, opaque)

        assert (await client.answer(opaque)).code == NOTHING


async def a_pop_of_unknown_age_tells_the_time_and_is_not_held(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        answer = await client.ask(pop_header(env, born_time=0))

    assert answer.code == NOTHING
    reported = read_header(answer, PopMessageResponse).pop_time
    assert abs(reported - time.time_ns() // 1_000_000) < 60_000


async def a_pop_from_long_ago_is_not_served(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    long_ago = time.time_ns() // 1_000_000 - 20_000
    async with env.client() as client:
        await store(client, env, b"1")
        answer = await client.ask(pop_header(env, born_time=long_ago, poll_time=1000))

    assert answer.code == NOTHING


async def a_young_queue_is_given_whole_wherever_a_group_begins(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1", b"2")
        await popped(client, env, 2, consumer_group=f"{env.group}-2")
        found = await popped(client, env, 2, init_mode=1)

    assert bodies(found) == [b"1", b"2"]


async def a_pop_begins_at_the_offset_that_pulls_committed(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await pop(client, env)  # creates the group
        await store(client, env, b"1", b"2")
        pulled = UpdateConsumerOffset(
            consumer_group=env.group, topic=env.topic, queue_id=0, commit_offset=1
        )
        assert (await client.ask(pulled)).code == 0
        found = await popped(client, env, 1)

        assert bodies(found) == [b"2"]
        await _ack_all(client, env, found)


async def a_pop_commits_the_offset_that_it_reached(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"one", b"two", b"three")
        found = await popped(client, env, 2, max_msg_nums=2)

        async def is_committed() -> bool:
            return await offset(client, query(env)) == 2

        assert await eventually(is_committed, AGAIN_SECONDS)
        await _ack_all(client, env, found)
        assert await is_committed()


async def a_pop_continues_where_the_offset_of_the_group_was_reset_to(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"one", b"two")
        await _ack_all(client, env, await popped(client, env, 2))
        assert (await reset_offset(client, env)).code == 0
        again = await popped(client, env, 2)
        rest = await pop(client, env)

    assert (bodies(again), rest) == ([b"one", b"two"], [])


async def an_ordered_pop_continues_where_the_offset_of_the_group_was_reset_to(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"one", b"two")
        first, _ = await until_in_order(client, env, "1")
        assert (await reset_offset(client, env)).code == 0
        again, _ = await until_in_order(client, env, "2")
        reached = await offset(client, query(env))

    assert (bodies(first), bodies(again), reached) == ([b"one", b"two"], [b"one", b"two"], 0)


async def a_disabled_group_may_not_pop(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await put_group(client, env.group, ',"consumeEnable":false')
        answer = await client.ask(pop_header(env))

    assert answer.code == 16


async def a_pop_may_pick_by_tag(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"no", tag="b")
        await store(client, env, b"yes", tag="a")

        assert bodies(await popped(client, env, 1, exp="a || c")) == [b"yes"]


async def a_blank_filter_pops_everything_and_an_unknown_kind_is_refused(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1")
        unknown = await client.ask(pop_header(env, exp="a", exp_type="XPATH"))
        [(body, receipt)] = await popped(client, env, 1, exp="", exp_type="SQL92")
        await _ack_all(client, env, [(body, receipt)])

    assert (unknown.code, body) == (23, b"1")


async def a_pop_says_how_many_messages_are_left(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1", b"2", b"3")
        answer = await client.ask(pop_header(env, max_msg_nums=1, queue_id=0))
        again = await client.ask(pop_header(env, max_msg_nums=1, queue_id=0))
        await _ack_all(client, env, [*got(answer, env), *got(again, env)])

    assert [each.ext_fields()["restNum"] for each in (answer, again)] == ["2", "1"]


async def an_ack_needs_a_queue_and_an_offset_that_exist(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1")
        [(body, receipt)] = await popped(client, env, 1)
        queue = await client.ask(ack_header(env, receipt, queue_id=99))
        offset = await client.ask(ack_header(env, receipt, offset=99))
        await _ack_all(client, env, [(body, receipt)])

    assert (queue.code, offset.code) == (13, 208)


async def too_much_or_the_unknown_is_refused(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        many = await client.ask(pop_header(env, max_msg_nums=33))
        topic = await client.ask(pop_header(env, topic=f"{env.topic}-2"))
        queue = await client.ask(pop_header(env, queue_id=99))

    assert (many.code, topic.code, queue.code) == (29, 17, 29)


# --- acks and renewals ---------------------------------------------------------------------------


async def unacknowledged_messages_are_redelivered(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1", b"2", b"3")
        found = await popped(client, env, 3, invisible_time=SOON_MILLIS * 3)
        one, two, _ = (receipt for _, receipt in found)
        assert (await client.ask(ack_header(env, one))).code == 0
        entries = batch_acks(env.group, [(env.topic, two)])
        body = msgspec.json.encode(BatchAckRequest(broker_name="broker-a", acks=entries))
        assert (await client.ask(BatchAckMessage(), body)).code == 0
        again = await popped(client, env, 1)
        assert (bodies(again), again[0][1].marker) == ([b"3"], "1")
        await is_settled(client, env, again[0][1])

        assert await pop(client, env) == []


async def a_redelivered_message_has_its_count_and_receipt(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1")
        await popped(client, env, 1, invisible_time=SOON_MILLIS)
        message = await redelivered(client, env)
    written = find_property(message.raw_properties, b"POP_CK\x01") or ""
    assert (message.topic, message.reconsume_times) == (env.topic, 1)
    assert parse_receipt(written).marker == "1"


async def redelivered(client: RawClient, env: CaseEnv) -> MessageExt:
    """Return the message that comes again."""
    answers: list[Command] = []

    async def comes() -> bool:
        answers.append(await client.ask(pop_header(env)))
        return answers[-1].code == 0

    assert await eventually(comes, AGAIN_SECONDS)
    [message], _ = decode_messages(answers[-1].body, MessageQueue(env.topic, "broker-a", 0))
    return message


async def a_suspended_message_is_redelivered_without_a_retry(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1")
        [(_, receipt)] = await popped(client, env, 1)
        await change(client, env, receipt, SOON_MILLIS, suspend=True)
        message = await redelivered(client, env)
        written = find_property(message.raw_properties, b"POP_CK\x01") or ""
        await change(client, env, parse_receipt(written), SOON_MILLIS, suspend=False)
        again = await redelivered(client, env)

    assert (message.topic, message.reconsume_times) == (env.topic, 0)
    assert parse_receipt(written).marker == "1"
    assert again.reconsume_times == 1


async def a_change_moves_the_time_under_a_new_receipt(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"longer", b"shorter")
        found = await popped(client, env, 2, invisible_time=SOON_MILLIS * 4)
        longer = await change(client, env, found[0][1], LONG_MILLIS)
        await change(client, env, found[1][1], SOON_MILLIS)
        again = await popped(client, env, 1)
        assert bodies(again) == [b"shorter"]
        await is_settled(client, env, again[0][1])
        await is_settled(client, env, longer)

    assert (longer.start_offset, longer.offset) == (0, 0)
    assert longer.pop_time > found[0][1].pop_time


async def an_empty_batch_is_rejected(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        without = await client.ask(BatchAckMessage())
        empty = msgspec.json.encode(BatchAckRequest(broker_name="broker-a", acks=[]))
        of_none = await client.ask(BatchAckMessage(), empty)

    assert (without.code, of_none.code) == (208, 208)


async def a_binary_header_cuts_the_code(env: CaseEnv) -> None:
    async with env.client() as client:
        fields = to_ext_fields(pop_header(env))
        answer = await client.answer(client.send_fields(RequestCode.POP_MESSAGE & 0xFFFF, fields))

    assert answer.code == UNKNOWN


# --- in order ------------------------------------------------------------------------------------


async def in_order(client: RawClient, env: CaseEnv, attempt: str) -> tuple[Got, list[int]]:
    """Return messages and how often each was popped before."""
    header = pop_header(env, queue_id=0, order=True, attempt_id=attempt)
    answer = await client.ask(header)
    found = got(answer, env)
    info = read_info(read_header(answer, PopMessageResponse))
    return found, [order_count(info, receipt) for _, receipt in found]


async def until_in_order(client: RawClient, env: CaseEnv, attempt: str) -> tuple[Got, list[int]]:
    results: list[tuple[Got, list[int]]] = []

    async def comes() -> bool:
        results.append(await in_order(client, env, attempt))
        return bool(results[-1][0])

    assert await eventually(comes, AGAIN_SECONDS)
    return results[-1]


async def an_ordered_queue_waits_for_its_messages(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1", b"2")
        found, counts = await until_in_order(client, env, "one")
        first = len(found)
        assert (bodies(found), counts) == ([b"1", b"2"][:first], [0] * first)
        assert await in_order(client, env, "two") == ([], [])
        same, counts = await in_order(client, env, "one")
        assert (bodies(same)[:first], counts[:first]) == (bodies(found), [0] * first)
        await _ack_all(client, env, same)
        await store(client, env, b"3")
        rest, _ = await until_in_order(client, env, "three")

    assert bodies(rest) == [b"1", b"2", b"3"][len(same) :]


async def an_orderly_redelivery_is_counted(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1")
        [(_, receipt)], _ = await until_in_order(client, env, "one")
        assert receipt.is_ordered
        moved = await change(client, env, receipt, SOON_MILLIS)
        assert (moved.pop_time, moved.revive_queue_id) == (receipt.pop_time, 999)
        again, counts = await until_in_order(client, env, "two")

    assert (bodies(again), counts) == ([b"1"], [1])


async def an_ordered_ack_of_an_earlier_pop_has_no_effect(env: CaseEnv) -> None:
    if await is_unknown(env):
        return
    async with env.client() as client:
        await store(client, env, b"1")
        [(_, first)], _ = await until_in_order(client, env, "one")
        await change(client, env, first, SOON_MILLIS)
        [(_, second)], _ = await until_in_order(client, env, "two")
        await change(client, env, first, 1)
        assert (await client.ask(ack_header(env, first))).code == 0
        assert await in_order(client, env, "three") == ([], [])
        before = await offset(client, query(env))
        assert (await client.ask(ack_header(env, second))).code == 0
        after = await offset(client, query(env))

    assert (before, after) == (0, 1)


async def _ack_all(client: RawClient, env: CaseEnv, found: Sequence[tuple[bytes, Receipt]]) -> None:
    for _, receipt in found:
        assert (await client.ask(ack_header(env, receipt))).code == 0


CASES: tuple[Case, ...] = (
    a_popped_message_is_invisible_to_its_group_alone,
    a_pop_returns_at_most_the_requested_number,
    a_pop_without_messages_is_held_until_one_arrives,
    a_held_pop_ends_empty,
    a_pop_of_unknown_age_tells_the_time_and_is_not_held,
    a_pop_from_long_ago_is_not_served,
    a_young_queue_is_given_whole_wherever_a_group_begins,
    a_pop_begins_at_the_offset_that_pulls_committed,
    a_pop_commits_the_offset_that_it_reached,
    a_pop_continues_where_the_offset_of_the_group_was_reset_to,
    an_ordered_pop_continues_where_the_offset_of_the_group_was_reset_to,
    a_disabled_group_may_not_pop,
    a_pop_may_pick_by_tag,
    a_blank_filter_pops_everything_and_an_unknown_kind_is_refused,
    a_pop_says_how_many_messages_are_left,
    an_ack_needs_a_queue_and_an_offset_that_exist,
    too_much_or_the_unknown_is_refused,
    unacknowledged_messages_are_redelivered,
    a_redelivered_message_has_its_count_and_receipt,
    a_suspended_message_is_redelivered_without_a_retry,
    a_change_moves_the_time_under_a_new_receipt,
    an_empty_batch_is_rejected,
    a_binary_header_cuts_the_code,
    an_ordered_queue_waits_for_its_messages,
    an_orderly_redelivery_is_counted,
    an_ordered_ack_of_an_earlier_pop_has_no_effect,
)
