"""The producer, on a scripted cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials
from rocketmq_aio.config.producer import Compression, ProducerConfig
from rocketmq_aio.errors import (
    BrokerError,
    ConfigError,
    InvalidMessageError,
    PayloadError,
)
from rocketmq_aio.model.codec import JSONCodec
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageQueue, SendStatus
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.queue_selectors import select_by_hash
from rocketmq_aio.protocol.compression import inflate
from tests.fakes.script import Reply
from tests.unit.producer.producer_env import ORDER, SEND, open_shop

ANY_ENCODING = [
    ClientConfig(),
    ClientConfig(header_encoding="json"),
    ClientConfig(credentials=Credentials(access_key="admin", secret_key="adminsecret")),
]


# --- what arrives --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
@pytest.mark.parametrize("client", ANY_ENCODING, ids=["binary", "json", "signed"])
async def test_a_message_is_stored_as_it_was_sent(version: str, client: ClientConfig) -> None:
    message = Message(
        "orders",
        "訂單".encode(),
        tags="new",
        keys=["42", "43"],
        properties={"color": "röt"},
        flag=7,
        wait_store_ok=False,
    )
    async with open_shop(version=version, client=client) as shop:
        result = await shop.producer.send(message)
        (stored,) = shop.broker.messages("orders")

        assert stored.body == message.body
        expected = {"TAGS": "new", "KEYS": "42 43", "color": "röt", "WAIT": "false"}
        assert stored.properties.items() >= expected.items()
        assert stored.properties["UNIQ_KEY"] == result.message_id
        (header,) = shop.sends()
        assert (header.producer_group, header.topic, header.flag) == ("shop", "orders", 7)
        assert (header.batch, header.reconsume_times, header.unit_mode) == (False, 0, False)
        assert header.default_topic == "TBW102"


async def test_the_result_says_where_it_is_stored() -> None:
    async with open_shop() as shop:
        results = [await shop.producer.send(ORDER, queue=shop.queue(2)) for _ in range(3)]
        stored = shop.broker.messages("orders", 2)

        assert [each.queue_offset for each in results] == [0, 1, 2]
        assert {each.queue for each in results} == {shop.queue(2)}
        assert [each.offset_message_id for each in results] == [each.message_id for each in stored]
        assert {each.status for each in results} == {SendStatus.SEND_OK}
        assert len({each.message_id for each in results}) == 3
        assert all(each.ok for each in results)


async def test_queues_of_all_brokers_take_turns() -> None:
    async with open_shop(brokers=2, queues=3) as shop:
        results = [await shop.producer.send(ORDER) for _ in range(12)]

        assert set(Counter(each.queue for each in results).values()) == {2}
        assert [len(broker.messages("orders")) for broker in shop.brokers] == [6, 6]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_a_large_body_travels_compressed(kind: Compression) -> None:
    body = b"orders and payments " * 1000
    async with open_shop(config=ProducerConfig(compression=kind)) as shop:
        await shop.producer.send(Message("orders", body))
        (header,) = shop.sends()
        (stored,) = shop.broker.messages("orders")

        assert len(stored.body) < len(body)
        assert inflate(stored.body, header.sys_flag) == body


async def test_the_same_message_can_be_sent_again_and_gets_another_id() -> None:
    async with open_shop() as shop:
        results = await asyncio.gather(*(shop.producer.send(ORDER) for _ in range(10)))

        assert len({each.message_id for each in results}) == 10
        assert shop.bodies() == [b"hello"] * 10


async def test_concurrent_sends_share_writes_and_all_arrive() -> None:
    bodies = [b"%d" % number for number in range(500)]
    async with open_shop() as shop:
        await asyncio.gather(*(shop.producer.send(Message("orders", body)) for body in bodies))

        assert sorted(shop.bodies()) == sorted(bodies)
        assert len(shop.broker.connects) == 1


async def test_sends_of_one_task_to_one_queue_keep_their_order() -> None:
    async with open_shop() as shop:
        for number in range(50):
            await shop.producer.send(Message("orders", b"%d" % number), queue=shop.queue(1))

        stored = shop.broker.messages("orders", 1)
        assert [each.body for each in stored] == [b"%d" % number for number in range(50)]


async def test_what_the_broker_calls_the_queue_is_believed() -> None:
    async with open_shop() as shop:
        answer = {"msgId": "0A", "queueId": "3", "queueOffset": "9"}
        shop.broker.on(SEND, Reply(ext=answer))
        result = await shop.producer.send(ORDER, queue=shop.queue(1))

        assert (result.queue, result.queue_offset) == (shop.queue(3), 9)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
async def test_stored_with_less_than_asked_for_is_a_result_and_no_error(
    code: int, status: SendStatus
) -> None:
    async with open_shop() as shop:
        answer = {"msgId": "0A", "queueId": "0", "queueOffset": "9"}
        shop.broker.on(SEND, Reply(code, ext=answer))
        result = await shop.producer.send(ORDER)

        assert (result.status, result.ok, result.queue_offset) == (status, False, 9)
        assert len(shop.sends()) == 1


# --- the choice of the queue ---------------------------------------------------------------------


async def test_a_selector_chooses_the_queue() -> None:
    seen: list[tuple[int, Message]] = []

    def last(queues: object, message: Message) -> MessageQueue:
        assert isinstance(queues, tuple)
        seen.append((len(queues), message))
        return queues[-1]  # type: ignore[no-any-return]

    async with open_shop() as shop:
        result = await shop.producer.send(ORDER, selector=last)

        assert result.queue == shop.queue(3)
        assert seen == [(4, ORDER)]


async def test_one_key_goes_to_one_queue() -> None:
    async with open_shop() as shop:
        results = [
            await shop.producer.send(ORDER, selector=select_by_hash("customer-7")) for _ in range(5)
        ]

        assert len({each.queue for each in results}) == 1


async def test_a_selector_that_fails_fails_the_send_and_takes_no_room() -> None:
    def broken(queues: object, message: Message) -> MessageQueue:
        raise LookupError("no choice")

    async with open_shop() as shop:
        with pytest.raises(LookupError):
            await shop.producer.send(ORDER, selector=broken)

        assert shop.sends() == []
        assert (shop.producer._in_flight.count, shop.producer._in_flight.bytes) == (0, 0)


async def choose(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return queues[0]


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (choose, r"test_producer.choose': expected a plain function"),
        (lambda queues, message: None, "it returned None: expected one of the queues"),
        (lambda queues, message: 0, "it returned 0: expected one of the queues"),
        (lambda queues: queues[0], r"called with \(queues, message\), and takes \(queues\)"),
        ("first", "expected a function"),
    ],
)
async def test_what_chooses_no_queue_is_told_by_name_and_sends_nothing(
    selector: Any,  # noqa: ANN401 - what somebody may give
    words: str,
) -> None:
    async with open_shop() as shop:
        for send in (shop.producer.send, shop.producer.send_oneway):
            with pytest.raises(ConfigError, match=words) as caught:
                await send(ORDER, selector=selector)
            assert caught.value.setting == "selector"
        assert shop.sends() == []
        assert (shop.producer._in_flight.count, shop.producer._in_flight.bytes) == (0, 0)


async def test_a_queue_and_a_selector_are_one_too_many() -> None:
    async with open_shop() as shop:
        with pytest.raises(ConfigError, match="either"):
            await shop.producer.send(ORDER, queue=shop.queue(), selector=select_by_hash("x"))


async def test_a_queue_of_another_topic_is_refused() -> None:
    async with open_shop() as shop:
        with pytest.raises(ConfigError, match="payments"):
            await shop.producer.send(ORDER, queue=MessageQueue("payments", "broker-a", 0))

        assert shop.sends() == []


async def test_a_queue_that_does_not_exist_is_refused_by_the_broker() -> None:
    config = ProducerConfig(retries=0)
    async with open_shop(version="5.5.0", config=config) as shop:
        with pytest.raises(BrokerError, match="illegal"):
            await shop.producer.send(ORDER, queue=shop.queue(99))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", bytes(1001)),
        Message("orders", b"x", properties={"p": "v" * 40_000}),
        Message("unheard-of", bytes(1001)),
    ],
)
async def test_a_message_that_breaks_a_rule_is_refused_before_anything_is_asked(
    message: Message,
) -> None:
    async with open_shop(config=ProducerConfig(max_message_bytes=1000)) as shop:
        asked = len(shop.cluster.name_server.requests)
        for send in (shop.producer.send, shop.producer.send_oneway):
            with pytest.raises(InvalidMessageError):
                await send(message)

        assert shop.broker.requests == []
        assert len(shop.cluster.name_server.requests) == asked


@pytest.mark.parametrize("message", [None, b"bytes", "text", {"topic": "orders"}])
async def test_what_is_no_message_is_refused(message: Message) -> None:
    async with open_shop() as shop:
        for send in (shop.producer.send, shop.producer.send_oneway):
            with pytest.raises(InvalidMessageError, match=r"expected Message\(topic, body\), got"):
                await send(message)


@pytest.mark.parametrize("seconds", [0, -1, True, "3", float("nan"), float("inf")])
async def test_a_deadline_that_is_none_is_refused(seconds: float) -> None:
    async with open_shop() as shop:
        with pytest.raises(ConfigError) as caught:
            await shop.producer.send(ORDER, timeout_seconds=seconds)

        assert caught.value.setting == "timeout_seconds"
        assert shop.sends() == []


def test_bad_settings_are_refused_before_anything_happens() -> None:
    with pytest.raises(ConfigError, match="ProducerConfig"):
        Producer("shop", namesrv="127.0.0.1:9876", config=ClientConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="namesrv"):
        Producer("shop", namesrv="no address")


# --- values --------------------------------------------------------------------------------------


async def test_a_value_is_sent_as_the_codec_writes_it() -> None:
    async with open_shop(config=ProducerConfig(codec=JSONCodec(dict[str, int]))) as shop:
        result = await shop.producer.send_value(
            "orders", {"id": 7}, queue=shop.queue(2), tags="new", keys="7"
        )
        (stored,) = shop.broker.messages("orders", 2)

        assert stored.body == b'{"id":7}'
        assert stored.properties.items() >= {"TAGS": "new", "KEYS": "7"}.items()
        assert stored.properties["UNIQ_KEY"] == result.message_id


async def test_a_value_that_cannot_be_written_is_not_sent() -> None:
    async with open_shop(config=ProducerConfig(codec=JSONCodec())) as shop:
        with pytest.raises(PayloadError):
            await shop.producer.send_value("orders", object())
        assert shop.sends() == []


async def test_values_need_a_codec() -> None:
    async with open_shop() as shop:
        with pytest.raises(ConfigError, match="ProducerConfig"):
            await shop.producer.send_value("orders", {"id": 7})
