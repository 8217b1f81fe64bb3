"""Light message queues.

`CASES` are for brokers with ``enableLmq`` and ``enableMultiDispatch``, `CASES_WITHOUT` for others.
"""

from __future__ import annotations

from rocketmq_aio.admin.offset_search import records
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import TRANSACTION_COMMIT, RequestCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import stored_message
from rocketmq_aio.protocol.requests.admin import DeleteTopicInBroker, QueryMessage
from rocketmq_aio.protocol.requests.offsets import (
    GetEarliestMsgStoretime,
    GetMaxOffset,
    GetMinOffset,
    SearchOffset,
    TimestampResponse,
)
from rocketmq_aio.protocol.requests.send import EndTransaction, SendMessageResponse
from tests.fakes.conformance.administration import (
    body_of,
    put_group,
    put_topic,
    reset_offset,
    topics,
)
from tests.fakes.conformance.assignments import ask as ask_assignment, set_mode
from tests.fakes.conformance.case_env import (
    Case,
    CaseEnv,
    eventually,
    everything,
    is_unanswered,
    messages_in,
    pull,
    pull_header,
    send_header,
)
from tests.fakes.conformance.membership import heartbeat
from tests.fakes.conformance.offsets import FUTURE_MILLIS, offset, query, update
from tests.fakes.conformance.popping import NOTHING, SOON_MILLIS, ack_header, pop_header, popped
from tests.fakes.conformance.pulling import NOT_HELD
from tests.fakes.conformance.sending import batch_of
from tests.fakes.conformance.sending_back import (
    LATE_SECONDS,
    dead_letters,
    found,
    retries,
    send_back,
)
from tests.fakes.raw_client import RawClient
from tests.fakes.stopwatch import Stopwatch

NAMES = "INNER_MULTI_DISPATCH"
OFFSETS = "INNER_MULTI_QUEUE_OFFSET"


def light(env: CaseEnv, name: str = "a") -> CaseEnv:
    """Return *env* with a light message queue as its topic."""
    return env._replace(topic=f"%LMQ%{env.topic}-{name}")


async def send_light(
    client: RawClient, env: CaseEnv, *names: str, queue_id: int = 0, **properties: str
) -> SendMessageResponse:
    """Store a message that names light message queues; it has the number of names as its body."""
    properties[NAMES] = ",".join(light(env, name).topic for name in names)
    header = send_header(env, queue_id, properties=encode_properties(properties))
    answer = await client.ask(header, b"%d" % len(names))
    assert answer.code == 0, answer
    return read_header(answer, SendMessageResponse)


async def end_of(client: RawClient, env: CaseEnv) -> int:
    return await offset(client, GetMaxOffset(topic=env.topic, queue_id=0))


async def ends_at(client: RawClient, env: CaseEnv, end: int) -> bool:
    """Return whether the end of queue 0 becomes *end*, which is what it stays."""

    async def is_there() -> bool:
        return await end_of(client, env) == end

    return await eventually(is_there, LATE_SECONDS)


async def origins(client: RawClient, env: CaseEnv) -> list[MessageExt]:
    """Return the messages of a light message queue as they are stored, in other topics."""
    answer = await client.ask(pull_header(env, 0, sys_flag=NOT_HELD))
    return [stored_message(each, "") for each in records(answer.body)]


async def a_message_goes_into_the_light_queues_that_it_names(env: CaseEnv) -> None:
    a, b = light(env), light(env, "b")
    async with env.client() as client:
        await send_light(client, env, "a", "b", queue_id=2)
        response = await send_light(client, env, "b", queue_id=1)
        in_a, in_b = await everything(client, a, 1), await everything(client, b, 2)
        stored = await origins(client, b)
        _, ends = await pull(client, pull_header(b, 2, sys_flag=NOT_HELD))
        beyond, corrected = await pull(client, pull_header(b, 5, sys_flag=NOT_HELD))
        other_queue = await client.ask(pull_header(b, 0, queue_id=1))

    assert (response.queue_id, response.queue_offset) == (1, 0)
    assert [each.body for each in in_b] == [b"2", b"1"]
    assert in_a[0].commit_log_offset == in_b[0].commit_log_offset
    assert [(each.queue.topic, each.queue.queue_id, each.queue_offset) for each in stored] == [
        *((env.topic, 2, 0), (env.topic, 1, 0))
    ]
    assert [each.property(OFFSETS) for each in stored] == ["0,0", "1"]
    assert (ends.next_begin_offset, ends.min_offset, ends.max_offset) == (2, 0, 2)
    assert (beyond.code, corrected.next_begin_offset) == (21, 2)
    assert other_queue.code == (29 if env.is_5 else 1)


async def every_name_of_a_light_queue_is_that_of_an_empty_topic(env: CaseEnv) -> None:
    of = light(env, "new")
    async with env.client() as client:
        answer, fields = await pull(client, pull_header(of, 0, sys_flag=NOT_HELD))
        illegal = await client.ask(pull_header(of, 10, sys_flag=NOT_HELD))
        first = await offset(client, GetMinOffset(topic=of.topic, queue_id=0))
        end = await end_of(client, of)
        searched = await offset(client, SearchOffset(topic=of.topic, queue_id=0, timestamp=1))
        created = await put_topic(client, of.topic, 4)
        other_queue = await client.ask(pull_header(of, 0, queue_id=1))
        committed = await client.ask(query(of))
        known = await topics(client)

    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert (fields.min_offset, fields.max_offset, first, end, searched) == (0, 0, 0, 0, 0)
    assert (illegal.code, committed.code) == (21, 22 if env.is_5 else 0)
    assert (created.code, other_queue.code) == (0, 29 if env.is_5 else 1)
    assert of.topic not in known


async def a_held_pull_of_a_light_queue_is_answered_when_a_message_arrives(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as consumer, env.client() as producer:
        every = consumer.send(pull_header(of, 0))
        tagged = consumer.send(pull_header(of, 0, subscription="t"))
        assert await is_unanswered(consumer, every)
        with Stopwatch() as passed:
            await send_light(producer, env, "a", TAGS="t")
            answers = [await consumer.answer(each) for each in (every, tagged)]
        other = await consumer.ask(pull_header(of, 0, subscription="u", sys_flag=NOT_HELD))

    assert passed.seconds < 2
    assert [[each.queue_offset for each in messages_in(answer, of)] for answer in answers] == [
        *([0], [0])
    ]
    assert other.code == 20


async def light_queues_have_store_times_and_committed_offsets(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await send_light(client, env, "b")
        for _ in range(2):
            await send_light(client, env, "a", "b")
        (first, _), begin = await everything(client, of, 2), await client.ask(query(of))
        earliest = await client.ask(GetEarliestMsgStoretime(topic=of.topic, queue_id=0))
        late = SearchOffset(topic=of.topic, queue_id=0, timestamp=FUTURE_MILLIS)
        found_late = await offset(client, late)
        assert (await client.ask(update(of, 2))).code == 0
        committed = await offset(client, query(of))

    assert read_header(earliest, TimestampResponse).timestamp == round(
        first.store_time.timestamp() * 1000
    )
    assert found_late == (2 if env.is_5 else 1)  # 4.9: the nearest
    assert (begin.ext_fields(), committed) == ({"offset": "0"}, 2)


async def messages_of_a_batch_go_into_no_light_queue(env: CaseEnv) -> None:
    named = {NAMES: light(env).topic}
    body = batch_of((b"one", {"UNIQ_KEY": "A"} | named), (b"two", {"UNIQ_KEY": "B"} | named))
    header = send_header(env, batch=True, properties=encode_properties(named))
    async with env.client() as client:
        assert (await client.ask(header, body)).code == 0
        batch = await everything(client, env, 2)
        await send_light(client, env, "a")
        (single,) = await everything(client, light(env), 1)

    assert [each.property(OFFSETS) for each in batch] == [None, None]
    assert single.body == b"1"


async def a_delayed_message_goes_into_a_light_queue_when_it_is_due(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await send_light(client, env, "a", DELAY="1")
        await everything(client, env, 1)
        assert await ends_at(client, of, 1 if env.is_5 else 2)
        stored = await origins(client, of)

    # 4.9 put it there at once, too.
    early = [] if env.is_5 else [("SCHEDULE_TOPIC_XXXX", "0")]
    due = (env.topic, str(len(early)))
    assert [(each.topic, each.property(OFFSETS)) for each in stored] == [*early, due]


async def a_half_message_goes_into_a_light_queue_and_again_when_it_is_committed(
    env: CaseEnv,
) -> None:
    of = light(env)
    async with env.client() as client:
        half = await send_light(client, env, "a", TRAN_MSG="true", PGROUP="conformance")
        assert await ends_at(client, of, 1)
        (hidden,) = await origins(client, of)
        end = EndTransaction(
            topic=env.topic,
            producer_group="conformance",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=hidden.commit_log_offset,
            commit_or_rollback=TRANSACTION_COMMIT,
            from_transaction_check=False,
            msg_id="",
        )
        assert (await client.ask(end)).code == 0
        await everything(client, env, 1)
        assert await ends_at(client, of, 2)
        _, committed = await origins(client, of)

    assert (hidden.topic, committed.topic) == ("RMQ_SYS_TRANS_HALF_TOPIC", env.topic)


async def messages_that_4_9_stores_again_go_into_light_queues_again(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        for _ in range(2):  # of the first one 5.5.0 does put the dead letter there
            await send_light(client, env, "a")
        _, message = await everything(client, of, 2)
        assert (await send_back(client, env, message, 1)).code == 0
        await found(client, env, retries(env))
        assert (await send_back(client, env, message, -1)).code == 0
        (dead,) = await found(client, env, dead_letters(env))
        await send_light(client, env, "b", "a")
        last = 2 if env.is_5 else 5
        assert await ends_at(client, of, last + 1)
        stored = await origins(client, of)

    again = ["SCHEDULE_TOPIC_XXXX", retries(env), dead_letters(env)]
    between = [] if env.is_5 else again
    assert [each.topic for each in stored[1:]] == [env.topic, *between, env.topic]
    assert stored[-1].property(OFFSETS) == f"0,{last}"
    assert dead.property(OFFSETS) == ("1" if env.is_5 else "4")


async def deleted_light_queues_begin_again_and_those_of_deleted_topics_stay(env: CaseEnv) -> None:
    a, b = light(env), light(env, "b")
    async with env.client() as client:
        await put_group(client, env.group)
        await send_light(client, env, "a", "b")
        await everything(client, a, 1)
        await client.ask(update(a, 1))
        deleted = await client.ask(DeleteTopicInBroker(topic=a.topic))
        end, committed = await end_of(client, a), await client.ask(query(a))
        await send_light(client, env, "a", "b")
        again = await everything(client, a, 1)
        assert (await client.ask(DeleteTopicInBroker(topic=env.topic))).code == 0
        kept = await everything(client, b, 2)
        await put_topic(client, env.topic, 4)

    assert (deleted.code, end, committed.code) == (0, 0, 22 if env.is_5 else 0)
    assert [each.property(OFFSETS) for each in again] == ["0,1"]
    assert [each.queue_offset for each in kept] == [0, 1]


async def light_queues_are_described_like_topics(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await put_group(client, env.group)
        for _ in range(3):
            await send_light(client, env, "a", KEYS="k")
        await everything(client, of, 3)
        await client.ask(update(of, 2))
        of_topic, of_group = {"topic": of.topic}, {"consumerGroup": env.group, "topic": ""}
        stats = await body_of(client, RequestCode.GET_TOPIC_STATS_INFO, of_topic)
        progress = await body_of(client, RequestCode.GET_CONSUME_STATS, of_group)
        every = await body_of(client, RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        groups = await body_of(client, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, of_topic)
        by_key = await client.ask(
            QueryMessage(
                topic=of.topic, key="k", max_num=9, begin_timestamp=0, end_timestamp=FUTURE_MILLIS
            )
        )
        config = await client.answer(client.send_fields(RequestCode.GET_TOPIC_CONFIG, of_topic))

    (ends,), (lag,) = stats["offsetTable"].values(), progress["offsetTable"].values()
    assert (ends["minOffset"], ends["maxOffset"]) == (0, 3)
    assert (lag["brokerOffset"], lag["consumerOffset"]) == (3, 2)
    [[listed]] = [each[env.group] for each in every["consumeStatsList"] if env.group in each]
    assert listed["offsetTable"].keys() == progress["offsetTable"].keys()
    assert (groups, by_key.code) == ({"groupList": [env.group]}, 22)
    assert config.code == (0 if env.is_5 else 3)


async def a_broker_assigns_its_light_queue(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        pulled = await ask_assignment(client, of, "c@1")
        everywhere = await ask_assignment(client, of, "c@1", message_model="BROADCASTING")
        await set_mode(client, env, of.topic, "POP")
        popping = await ask_assignment(client, of, "c@1")

    assert pulled == ([(0, "PULL")] if env.is_5 else 3)
    assert (everywhere, popping) == ((None, [(-1, "POP")]) if env.is_5 else (3, 3))


async def offsets_of_a_light_queue_can_be_reset(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await heartbeat(client, env, "c@1")
        await send_light(client, env, "a")
        await everything(client, of, 1)
        await client.ask(update(of, 1))
        reset = await reset_offset(client, of)
        if env.is_5:  # 4.9 sends the offset to members
            moved, fields = await pull(client, pull_header(of, 1))
            assert (moved.code, fields.next_begin_offset) == (21, 0)
            assert await offset(client, query(of)) == 0

    assert reset.code == 0


async def light_queues_are_popped(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        for number in range(1, 3):
            await send_light(client, env, "a", "b", queue_id=number)
        await everything(client, of, 2)
        answer = await client.ask(pop_header(of, invisible_time=SOON_MILLIS))
        if not env.is_5:
            assert answer.code == 3
            return
        none = await client.ask(pop_header(of))
        assert (answer.code, none.code) == (0, NOTHING)
        fields = answer.ext_fields()
        again = await popped(client, of, 2)
        for _, receipt in again:
            assert (await client.ask(ack_header(of, receipt))).code == 0

    assert (fields["startOffsetInfo"], fields["msgOffsetInfo"]) == ("0 0 0", "0 0 0,1")
    first = [stored_message(each, "").topic for each in records(answer.body)]
    assert first == [env.topic, env.topic]
    assert [(each.marker, each.offset) for _, each in again] == [("1", 0), ("1", 1)]


async def without_their_settings_there_are_no_light_queues(env: CaseEnv) -> None:
    of = light(env)
    async with env.client() as client:
        await send_light(client, env, "a")
        (message,) = await everything(client, env, 1)
        unknown = await client.ask(pull_header(of, 0, sys_flag=NOT_HELD))
        end = await end_of(client, of)

    assert (message.property(NAMES), message.property(OFFSETS)) == (of.topic, None)
    assert (unknown.code, end) == (17, 0)


CASES_WITHOUT: tuple[Case, ...] = (without_their_settings_there_are_no_light_queues,)

CASES: tuple[Case, ...] = (
    a_message_goes_into_the_light_queues_that_it_names,
    every_name_of_a_light_queue_is_that_of_an_empty_topic,
    a_held_pull_of_a_light_queue_is_answered_when_a_message_arrives,
    light_queues_have_store_times_and_committed_offsets,
    messages_of_a_batch_go_into_no_light_queue,
    a_delayed_message_goes_into_a_light_queue_when_it_is_due,
    a_half_message_goes_into_a_light_queue_and_again_when_it_is_committed,
    messages_that_4_9_stores_again_go_into_light_queues_again,
    deleted_light_queues_begin_again_and_those_of_deleted_topics_stay,
    light_queues_are_described_like_topics,
    a_broker_assigns_its_light_queue,
    offsets_of_a_light_queue_can_be_reset,
    light_queues_are_popped,
)
