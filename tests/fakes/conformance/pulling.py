"""Pulls: found, held and rejected."""

from __future__ import annotations

import time

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.requests.offsets import OffsetResponse, QueryConsumerOffset
from rocketmq_aio.protocol.requests.pull import PullMessageResponse
from tests.fakes.conformance.case_env import (
    QUEUES,
    Case,
    CaseEnv,
    everything,
    is_unanswered,
    messages_in,
    pull,
    pull_header,
    send,
    send_header,
)
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.conformance.sending import batch_of
from tests.fakes.log_reader import read_queue
from tests.fakes.stopwatch import Stopwatch

TICK_SECONDS = 5.5  # real brokers check held pulls every five seconds
NOT_HELD = PULL_SUBSCRIPTION


async def a_pull_at_the_end_is_held_until_a_message_arrives(env: CaseEnv) -> None:
    async with env.client() as consumer, env.client() as producer:
        opaque = consumer.send(pull_header(env, 0))
        assert await is_unanswered(consumer, opaque)

        with Stopwatch() as passed:
            await send(producer, env, b"awaited")
            answer = await consumer.answer(opaque)
        assert passed.seconds < 2
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert [message.body for message in messages_in(answer, env)] == [b"awaited"]
        assert read_header(answer, PullMessageResponse).next_begin_offset == 1


async def a_held_pull_ends_empty_after_the_time_it_gave(env: CaseEnv) -> None:
    async with env.client() as client:
        began = time.monotonic()
        with Stopwatch() as passed:
            answer, fields = await pull(client, pull_header(env, 0, suspend_timeout_millis=1000))

    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert (fields.next_begin_offset, fields.min_offset, fields.max_offset) == (0, 0, 0)
    assert time.monotonic() - began > 0.9
    assert passed.seconds < 1 + TICK_SECONDS


async def a_pull_that_may_not_be_held_is_answered_at_once(env: CaseEnv) -> None:
    async with env.client() as client:
        await send(client, env, b"body")
        await everything(client, env, 1)
        with Stopwatch() as passed:
            answer, fields = await pull(client, pull_header(env, 1, sys_flag=NOT_HELD))

    assert passed.seconds < 2
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert fields.next_begin_offset == 1


async def a_held_pull_does_not_block_its_connection(env: CaseEnv) -> None:
    async with env.client() as client:
        opaque = client.send(pull_header(env, 0))
        assert await send(client, env, b"body") == 0

        assert (await client.answer(opaque)).code == 0


async def two_held_pulls_of_one_queue_are_both_answered(env: CaseEnv) -> None:
    async with env.client() as client:
        opaques = [client.send(pull_header(env, 0)) for _ in range(2)]
        assert await is_unanswered(client, opaques[0])
        await send(client, env, b"body")

        assert [(await client.answer(opaque)).code for opaque in opaques] == [0, 0]


async def an_offset_beyond_the_end_is_corrected_to_the_end(env: CaseEnv) -> None:
    async with env.client() as client:
        for _ in range(2):
            await send(client, env, b"body")
        await everything(client, env, 2)
        answer, fields = await pull(client, pull_header(env, 3))

    assert (answer.code, answer.remark) == (21, "OFFSET_OVERFLOW_BADLY")
    assert (fields.next_begin_offset, fields.min_offset, fields.max_offset) == (2, 0, 2)
    assert fields.suggest_which_broker_id == 0


async def an_offset_before_the_beginning_is_corrected_to_it(env: CaseEnv) -> None:
    async with env.client() as client:
        await send(client, env, b"body")
        await everything(client, env, 1)
        answer, fields = await pull(client, pull_header(env, -1))

    assert (answer.code, answer.remark) == (21, "OFFSET_TOO_SMALL")
    assert fields.next_begin_offset == 0


async def any_offset_but_0_is_illegal_in_an_empty_queue(env: CaseEnv) -> None:
    async with env.client() as client:
        answer, fields = await pull(client, pull_header(env, 10))

    assert (answer.code, answer.remark) == (21, "NO_MESSAGE_IN_QUEUE")
    assert fields.next_begin_offset == 0


async def a_pull_returns_at_most_the_requested_number(env: CaseEnv) -> None:
    async with env.client() as client:
        for _ in range(3):
            await send(client, env, b"body")
        await everything(client, env, 3)
        two, after_two = await pull(client, pull_header(env, 0, max_msg_nums=2))
        none, after_none = await pull(client, pull_header(env, 0, max_msg_nums=0))

    assert (len(messages_in(two, env)), after_two.next_begin_offset) == (2, 2)
    # A pull for 0 messages returns one.
    assert (len(messages_in(none, env)), after_none.next_begin_offset) == (1, 1)


async def a_tag_expression_picks_messages_by_tag(env: CaseEnv) -> None:
    async with env.client() as client:
        for tag in ("a", "b", "", "c"):
            await send(client, env, b"body of " + tag.encode(), tag)
        await everything(client, env, 4)
        answer, fields = await pull(client, pull_header(env, 0, subscription="a || c"))

    bodies = [message.body for message in messages_in(answer, env)]
    assert bodies == [b"body of a", b"body of c"]
    assert fields.next_begin_offset == 4


async def a_pull_past_messages_that_do_not_match_is_answered_at_once(env: CaseEnv) -> None:
    async with env.client() as client:
        for _ in range(2):
            await send(client, env, b"body", "other")
        await everything(client, env, 2)
        answer, fields = await pull(client, pull_header(env, 0, subscription="wanted"))

    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert fields.next_begin_offset == 2


async def a_message_that_does_not_match_ends_no_hold(env: CaseEnv) -> None:
    offset = 0
    async with env.client() as client:
        for _ in range(4):  # every 5 s a real broker ends all holds with messages behind them
            opaque = client.send(pull_header(env, offset, subscription="wanted"))
            assert await is_unanswered(client, opaque)
            await send(client, env, b"first", "other")
            offset += 1
            if not await is_unanswered(client, opaque):
                continue
            await send(client, env, b"second", "wanted")
            offset += 1
            answer = await client.answer(opaque)
            if answer.code == 0:
                break
        else:
            raise AssertionError("four holds ended at messages that do not match")

    assert [message.body for message in messages_in(answer, env)] == [b"second"]
    assert read_header(answer, PullMessageResponse).next_begin_offset == offset


async def a_hold_that_saw_only_others_ends_past_them(env: CaseEnv) -> None:
    header = pull_header(env, 0, subscription="wanted", suspend_timeout_millis=3000)
    async with env.client() as client:
        opaque = client.send(header)
        assert await is_unanswered(client, opaque)
        await send(client, env, b"first", "other")
        answer = await client.answer(opaque)

    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert read_header(answer, PullMessageResponse).next_begin_offset == 1


async def a_tag_expression_without_a_tag_is_refused(env: CaseEnv) -> None:
    async with env.client() as client:
        assert (await client.ask(pull_header(env, 0, subscription="||"))).code == 23


async def a_blank_tag_expression_matches_nothing(env: CaseEnv) -> None:
    async with env.client() as client:
        await send(client, env, b"body")
        await everything(client, env, 1)
        blank = await client.ask(pull_header(env, 0, subscription=" "))
        bars = await client.ask(pull_header(env, 0, subscription="|| "))

    assert (blank.code, bars.code) == (20, 20)


async def an_unknown_topic_or_queue_is_refused(env: CaseEnv) -> None:
    async with env.client() as client:
        topic = await client.ask(pull_header(env, 0, topic=f"{env.topic}-unknown"))
        queue = await client.ask(pull_header(env, 0, queue_id=QUEUES))

    assert (topic.code, queue.code) == (17, 29 if env.is_5 else 1)


async def a_pull_may_carry_a_commit(env: CaseEnv) -> None:
    flags = PULL_SUSPEND | PULL_SUBSCRIPTION | PULL_COMMIT
    asked = QueryConsumerOffset(consumer_group=env.group, topic=env.topic, queue_id=0)
    async with env.client() as client:
        for _ in range(2):
            await send(client, env, b"body")
        await everything(client, env, 2)
        await pull(client, pull_header(env, 1, sys_flag=flags, commit_offset=1))
        answer = await client.ask(asked)

    assert read_header(answer, OffsetResponse).offset == 1


async def without_an_expression_the_groups_subscription_counts(env: CaseEnv) -> None:
    header = pull_header(env, 0, sys_flag=PULL_SUSPEND, subscription=None, sub_version=100)
    newer = pull_header(env, 0, sys_flag=PULL_SUSPEND, subscription=None, sub_version=101)
    async with env.client() as client:
        for tag in ("a", "b"):
            await send(client, env, tag.encode(), tag)
        await everything(client, env, 2)
        strange = await client.ask(header)
        await heartbeat(client, env, "c@1", expression="b", version=100)
        known = await client.ask(header)
        too_new = await client.ask(newer)

    assert (strange.code, known.code, too_new.code) == (24, 0, 25)
    assert [message.body for message in messages_in(known, env)] == [b"b"]


async def lite_pulls_are_known_from_5_on(env: CaseEnv) -> None:
    fields = to_ext_fields(pull_header(env, 0))
    async with env.client() as client:
        await send(client, env, b"body")
        await everything(client, env, 1)
        answer = await client.answer(client.send_fields(RequestCode.LITE_PULL_MESSAGE, fields))

    assert answer.code == (0 if env.is_5 else 3)


async def an_independent_reader_reads_the_same(env: CaseEnv) -> None:
    body = batch_of((b"three", {"UNIQ_KEY": "C"}), (b"four", {"UNIQ_KEY": "D", "k": "v"}))
    async with env.client() as client:
        for number, text in enumerate((b"one", b"two")):
            properties = encode_properties({"UNIQ_KEY": "AB"[number], "TAGS": "t"})
            await client.ask(send_header(env, properties=properties), text)
        await client.ask(send_header(env, batch=True), body)
        messages = await everything(client, env, 4)
    entries = await read_queue(env.broker, env.queue())

    assert [(e.offset, e.body, e.message_id) for e in entries] == [
        (m.queue_offset, m.body, m.message_id) for m in messages
    ]
    assert [e.message_id for e in entries] == ["A", "B", "C", "D"]


CASES: tuple[Case, ...] = (
    a_pull_at_the_end_is_held_until_a_message_arrives,
    a_held_pull_ends_empty_after_the_time_it_gave,
    a_pull_that_may_not_be_held_is_answered_at_once,
    a_held_pull_does_not_block_its_connection,
    two_held_pulls_of_one_queue_are_both_answered,
    an_offset_beyond_the_end_is_corrected_to_the_end,
    an_offset_before_the_beginning_is_corrected_to_it,
    any_offset_but_0_is_illegal_in_an_empty_queue,
    a_pull_returns_at_most_the_requested_number,
    a_tag_expression_picks_messages_by_tag,
    a_pull_past_messages_that_do_not_match_is_answered_at_once,
    a_message_that_does_not_match_ends_no_hold,
    a_hold_that_saw_only_others_ends_past_them,
    a_tag_expression_without_a_tag_is_refused,
    a_blank_tag_expression_matches_nothing,
    an_unknown_topic_or_queue_is_refused,
    a_pull_may_carry_a_commit,
    without_an_expression_the_groups_subscription_counts,
    lite_pulls_are_known_from_5_on,
    an_independent_reader_reads_the_same,
)
