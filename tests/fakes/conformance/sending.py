"""Sends of single messages and batches, and the stored messages."""

from __future__ import annotations

import re
import zlib
from typing import Any

from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.protocol.codes import COMPRESSED, RequestCode
from rocketmq_aio.protocol.header import read_header, to_ext_fields
from rocketmq_aio.protocol.record import encode_batch_entry
from rocketmq_aio.protocol.requests.send import SendMessageResponse
from tests.fakes.conformance.case_env import (
    QUEUES,
    Case,
    CaseEnv,
    everything,
    is_unanswered,
    send,
    send_header,
)

ID = "0123456789ABCDEF0123456789ABCDEF"
LONG_SEND = 10  # of clients in other languages
OFFSET_ID = re.compile(r"[0-9A-F]{32}")


async def a_send_is_answered_with_where_the_message_is(env: CaseEnv) -> None:
    async with env.client() as client:
        header = send_header(env, 1, properties=encode_properties({"UNIQ_KEY": ID}))
        answer = await client.ask(header, b"body")
    fields = answer.ext_fields()

    assert answer.code == 0
    assert OFFSET_ID.fullmatch(fields["msgId"])
    assert (fields["queueId"], fields["queueOffset"]) == ("1", "0")
    assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
    # Only brokers since 5.0 return the message id.
    assert fields.get("transactionId") == (ID if env.is_5 else None)


async def offsets_of_a_queue_ascend_by_one(env: CaseEnv) -> None:
    async with env.client() as client:
        assert [await send(client, env, b"body") for _ in range(3)] == [0, 1, 2]


async def a_stored_message_has_the_fields_that_were_sent(env: CaseEnv) -> None:
    sent = {"TAGS": "new", "KEYS": "k1 k2", "UNIQ_KEY": ID, "colour": "grün"}
    header = send_header(
        env, flag=7, properties=encode_properties(sent), born_timestamp=1_700_000_000_123
    )
    async with env.client() as client:
        answer = await client.ask(header, b"\x00body\xff")
        (message,) = await everything(client, env, 1)

    added = {"CLUSTER": message.properties["CLUSTER"]}
    if env.is_5:
        added |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert message.body == b"\x00body\xff"
    assert message.properties == sent | added
    assert message.raw_properties.endswith(b"\x02") == env.is_5
    assert (message.flag, message.sys_flag, message.reconsume_times) == (7, 0, 0)
    assert message.born_time.timestamp() == 1_700_000_000.123
    assert message.born_host.startswith("127.0.0.1:")
    assert message.store_host == env.broker
    assert message.body_crc == zlib.crc32(b"\x00body\xff") & 0x7FFF_FFFF
    assert message.offset_message_id == answer.ext_fields()["msgId"]


async def brokers_from_5_give_a_message_without_an_id_one(env: CaseEnv) -> None:
    async with env.client() as client:
        await send(client, env, b"body")
        (message,) = await everything(client, env, 1)

    assert ("UNIQ_KEY" in message.properties) == env.is_5


async def a_compressed_body_is_kept_as_it_is(env: CaseEnv) -> None:
    body = zlib.compress(b"long " * 1000)
    async with env.client() as client:
        await client.ask(send_header(env, sys_flag=COMPRESSED), body)
        (message,) = await everything(client, env, 1)

    assert message.body == b"long " * 1000  # decompressed by the decoder because of the flag
    assert message.sys_flag & COMPRESSED
    assert message.body_crc == zlib.crc32(body) & 0x7FFF_FFFF


def batch_of(*entries: tuple[bytes, dict[str, str]]) -> bytes:
    return b"".join(
        part
        for body, properties in entries
        for part in encode_batch_entry(body, encode_properties(properties).encode(), 3)
    )


async def the_entries_of_a_batch_are_messages_at_consecutive_offsets(env: CaseEnv) -> None:
    body = batch_of((b"one", {"UNIQ_KEY": ID, "a": "1"}), (b"two", {"a": "2"}))
    header = send_header(env, batch=True)
    async with env.client() as client:
        await send(client, env, b"before")
        opaque = client.send_fields(RequestCode.SEND_BATCH_MESSAGE, to_ext_fields(header), body)
        answer = read_header(await client.answer(opaque), SendMessageResponse)
        _, first, second = await everything(client, env, 3)

    # 4.9 adds properties of the batch and its own; 5.5 stores entries as sent.
    added = {} if env.is_5 else {"WAIT": "true", "CLUSTER": first.properties.get("CLUSTER")}
    assert answer.queue_offset == 1
    assert answer.transaction_id is None
    assert answer.msg_id == f"{first.offset_message_id},{second.offset_message_id}"
    assert [(m.body, m.queue_offset, m.flag) for m in (first, second)] == [
        (b"one", 1, 3),
        (b"two", 2, 3),
    ]
    assert first.properties == {"UNIQ_KEY": ID, "a": "1"} | added
    assert second.properties == {"a": "2"} | added


async def the_batch_field_decides_not_the_code(env: CaseEnv) -> None:
    body = batch_of((b"one", {}), (b"two", {}))
    fields = to_ext_fields(send_header(env, batch=False))
    async with env.client() as client:
        await client.answer(client.send_fields(RequestCode.SEND_BATCH_MESSAGE, fields, body))
        (message,) = await everything(client, env, 1)

    assert message.body == body


async def a_queue_that_does_not_exist_is_refused(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(send_header(env, QUEUES), b"body")

    assert answer.code == (29 if env.is_5 else 1)
    assert answer.remark is not None
    assert answer.remark.startswith(f"request queueId[{QUEUES}] is illegal")


async def the_broker_chooses_where_the_queue_is_negative(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(send_header(env, -1), b"body")

    assert answer.code == 0
    assert 0 <= read_header(answer, SendMessageResponse).queue_id < QUEUES


async def only_brokers_before_5_store_an_empty_body(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(send_header(env), b"")

    assert answer.code == (1 if env.is_5 else 0)


async def a_body_over_four_mebibytes_is_refused(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(send_header(env), bytes(4 * 1024 * 1024 + 1))

    assert answer.code == 13


async def a_oneway_send_is_stored_and_not_answered(env: CaseEnv) -> None:
    async with env.client() as client:
        opaque = client.send(send_header(env), b"body", oneway=True)
        (message,) = await everything(client, env, 1)

        assert message.body == b"body"
        assert await is_unanswered(client, opaque)


async def a_send_without_a_topic_is_an_internal_error(env: CaseEnv) -> None:
    fields = to_ext_fields(send_header(env))
    del fields["b"]
    async with env.client() as client:
        answer = await client.answer(client.send_fields(RequestCode.SEND_MESSAGE_V2, fields, b"x"))

    assert answer.code == 1


async def invalid_and_system_topics_are_rejected(env: CaseEnv) -> None:
    invalid = ("t" * 128, "two words", "a.b", "", "  ")
    system = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
    async with env.client() as client:
        of_invalid = [await client.ask(send_header(env, topic=each), b"x") for each in invalid]
        of_system = [await client.ask(send_header(env, topic=each), b"x") for each in system]

    assert {answer.code for answer in of_invalid} == {29 if env.is_5 else 1}
    assert {answer.code for answer in of_system} == {16}
    rule = "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    faults = [f": {invalid[0]}, is longer than topic max length: 127"]
    faults += [f": {name}, {rule}" for name in invalid[1:3]]
    if not env.is_5:
        faults = [" is longer than topic max length.", f" {rule}", f" {rule}"]
    assert [answer.remark for answer in of_invalid] == [
        *(f"The specified topic{fault}" for fault in faults),
        *["The specified topic is blank."] * 2,
    ]
    for answer in (*of_invalid, *of_system):
        assert answer.ext_fields() == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def a_send_may_have_long_names(env: CaseEnv) -> None:
    fields = {
        "producerGroup": "conformance",
        "topic": env.topic,
        "queueId": "0",
        "flag": "7",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "sysFlag": "0",
        "bornTimestamp": "1700000000123",
        "reconsumeTimes": "0",
        "batch": "false",
        "unitMode": "false",
        "properties": encode_properties({"TAGS": "new"}),
    }
    async with env.client() as client:
        answer = await client.answer(client.send_fields(LONG_SEND, fields, b"body"))
        (message,) = await everything(client, env, 1)

    assert (answer.code, answer.ext_fields()["queueId"]) == (0, "0")
    assert (message.body, message.flag, message.tags) == (b"body", 7, "new")


async def properties_are_limited_as_stored(env: CaseEnv) -> None:
    longest = 32_705 if env.is_5 else 32_745  # brokers add some
    head = "UNIQ_KEY\x01A\x02p\x01"
    async with env.client() as client:
        codes = [
            (await client.ask(send_header(env, properties=text), b"x")).code
            for text in (head + "v" * (length - len(head) - 1) + "\x02"
                         for length in (longest, longest + 1))
        ]  # fmt: skip

    assert codes == [0, 13]


async def a_delay_that_is_no_number_is_an_error(env: CaseEnv) -> None:
    async with env.client() as client:
        answer = await client.ask(send_header(env, properties="DELAY\x01x\x02"), b"body")

    assert answer.code == 1


async def unsuitable_batches_are_rejected(env: CaseEnv) -> None:
    entry = batch_of((b"one", {"UNIQ_KEY": ID}))
    retry = f"%RETRY%{env.group}"
    big = batch_of(*[(bytes(1_100_000), {"UNIQ_KEY": ID})] * 4)
    async with env.client() as client:

        async def code(body: bytes, **changes: Any) -> int:  # noqa: ANN401 - fields of the header
            return (await client.ask(send_header(env, batch=True, **changes), body)).code

        assert await code(entry, properties="DELAY\x013\x02") == 13
        assert await code(entry, topic=retry) == (13 if env.is_5 else 0)
        assert await code(big) == (1 if env.is_5 else 13)
        assert await code(b"") == 1
        assert await code(b"xyz") == 1


async def receipts_of_pops_are_not_stored_from_5_on(env: CaseEnv) -> None:
    header = send_header(env, properties=encode_properties({"POP_CK": "0 1", "CLUSTER": "c"}))
    async with env.client() as client:
        await client.ask(header, b"body")
        (message,) = await everything(client, env, 1)

    assert message.property("POP_CK") == (None if env.is_5 else "0 1")
    assert message.property("CLUSTER") != "c"


async def only_brokers_from_5_store_the_wait_flag_of_a_plain_message(env: CaseEnv) -> None:
    async with env.client() as client:
        for wait in ("false", "true"):
            header = send_header(env, properties=encode_properties({"WAIT": wait}))
            await client.ask(header, b"body")
        batch = send_header(env, batch=True, properties=encode_properties({"WAIT": "true"}))
        await client.ask(batch, batch_of((b"one", {"UNIQ_KEY": ID})))
        messages = await everything(client, env, 3)

    waits = [each.property("WAIT") for each in messages]
    assert waits == (["false", "true", None] if env.is_5 else [None, None, "true"])


async def a_send_to_an_unknown_topic_creates_it(env: CaseEnv) -> None:
    topic = f"{env.topic}-made"
    header = send_header(env, topic=topic, default_topic_queue_nums=2)
    async with env.client() as client:
        made = await client.ask(header, b"body")
        beyond = await client.ask(send_header(env, 2, topic=topic), b"body")

    assert (made.code, beyond.code) == (0, 29 if env.is_5 else 1)


async def a_send_creates_no_more_queues_than_the_template_has(env: CaseEnv) -> None:
    topic = f"{env.topic}-made"
    header = send_header(env, topic=topic, default_topic_queue_nums=2_000_000_000)
    async with env.client() as client:
        made = await client.ask(header, b"body")
        last = await client.ask(send_header(env, 7, topic=topic), b"body")
        beyond = await client.ask(send_header(env, 8, topic=topic), b"body")

    assert (made.code, last.code, beyond.code) == (0, 0, 29 if env.is_5 else 1)


async def a_send_creates_no_topic_from_one_that_is_no_template(env: CaseEnv) -> None:
    topic = f"{env.topic}-made"
    async with env.client() as client:
        missing = await client.ask(send_header(env, topic=topic, default_topic="none"), b"body")
        ordinary = await client.ask(send_header(env, topic=topic, default_topic=env.topic), b"body")

    assert (missing.code, ordinary.code) == (17, 17)


CASES: tuple[Case, ...] = (
    a_send_is_answered_with_where_the_message_is,
    offsets_of_a_queue_ascend_by_one,
    a_stored_message_has_the_fields_that_were_sent,
    brokers_from_5_give_a_message_without_an_id_one,
    a_compressed_body_is_kept_as_it_is,
    the_entries_of_a_batch_are_messages_at_consecutive_offsets,
    the_batch_field_decides_not_the_code,
    invalid_and_system_topics_are_rejected,
    a_send_may_have_long_names,
    properties_are_limited_as_stored,
    a_delay_that_is_no_number_is_an_error,
    unsuitable_batches_are_rejected,
    receipts_of_pops_are_not_stored_from_5_on,
    only_brokers_from_5_store_the_wait_flag_of_a_plain_message,
    a_queue_that_does_not_exist_is_refused,
    the_broker_chooses_where_the_queue_is_negative,
    only_brokers_before_5_store_an_empty_body,
    a_body_over_four_mebibytes_is_refused,
    a_oneway_send_is_stored_and_not_answered,
    a_send_without_a_topic_is_an_internal_error,
    a_send_to_an_unknown_topic_creates_it,
    a_send_creates_no_more_queues_than_the_template_has,
    a_send_creates_no_topic_from_one_that_is_no_template,
)
