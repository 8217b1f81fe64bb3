"""Requests from brokers: dispatch and replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Unpack

import msgspec
import pytest

from rocketmq_aio.config.client import ClientConfig, ClientSettings
from rocketmq_aio.instance import requests_from_broker
from rocketmq_aio.instance.inner_clients import InnerClient, InnerConsumer
from rocketmq_aio.instance.pending_replies import PendingReplies
from rocketmq_aio.instance.requests_from_broker import BrokerRequestHandler
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol import replies as reply_bodies
from rocketmq_aio.protocol.bodies import (
    ConsumeDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    DirectOutcome,
    queue_table,
)
from rocketmq_aio.protocol.codes import COMPRESSED, ONEWAY_FLAG, RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.from_broker import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    NotifyConsumerIdsChanged,
    PushReplyMessage,
    ResetOffset,
)
from rocketmq_aio.remoting.inbound_requests import WORKERS
from tests.fakes.broker import FakeBroker
from tests.unit.remoting.clients import open_client
from tests.unit.remoting.until import until
from tests.unit.stored import Stored

QUEUE = MessageQueue("orders", "broker-a", 0)
RESET = ResetOffset(group="billing", topic="orders", timestamp=0, is_force=True)


class Consumer:
    """A consumer that writes down what it is asked."""

    def __init__(self, group: str = "billing") -> None:
        self.group = group
        self.changes = 0
        self.resets: list[dict[MessageQueue, int]] = []
        self.check_ids: list[str] = []

    def topics(self) -> list[str]:
        return ["orders"]

    def on_route_changed(self, topic: str) -> None: ...

    def on_failed(self, cause: BaseException) -> None: ...

    def heartbeat_data(self) -> ConsumerData:
        raise NotImplementedError

    def on_members_changed(self) -> None:
        self.changes += 1

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append(dict(offsets))

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        return {QUEUE: 42} if topic == "orders" else {}

    def on_own_id_queried(self, check_id: str) -> None:
        self.check_ids.append(check_id)

    def running_info(self) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={"PROP_CLIENT_VERSION": "x"}, subscription_set=[], mq_table=queue_table({})
        )


class HangingConsumer(Consumer):
    """A consumer whose offset store hangs."""

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        await super().reset_offsets(topic, offsets)
        await asyncio.Event().wait()


class HandlingConsumer(Consumer):
    """A consumer with a handler, which ends when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.handled: list[tuple[MessageExt, str | None]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeDirectlyResult:
        self.handled.append((message, broker_name))
        await self.may_end.wait()
        return ConsumeDirectlyResult(consume_result=DirectOutcome.LATER, remark="busy")


class Asking:
    """A broker with a client connected to it."""

    def __init__(self, broker: FakeBroker, consumer: Consumer) -> None:
        self.broker = broker
        self.consumer = consumer


@asynccontextmanager
async def asking(
    consumer: Consumer | None = None,
    producers: dict[str, InnerClient] | None = None,
    replies: PendingReplies | None = None,
    **config: Unpack[ClientSettings],
) -> AsyncIterator[Asking]:
    consumer = consumer or Consumer()
    owners: dict[str, InnerConsumer] = {"billing": consumer}
    pending = PendingReplies() if replies is None else replies  # an empty one is false
    handler = BrokerRequestHandler(owners, producers or {}, pending, ClientConfig(**config))
    async with FakeBroker() as broker, open_client(on_request=handler.handle) as opened:
        await opened.ask(broker.address)
        yield Asking(broker, consumer)


def reset_body(offsets: dict[MessageQueue, int]) -> bytes:
    return b'{"offsetTable":%b}' % bytes(queue_table(offsets))


async def test_a_change_of_members_reaches_the_consumer_of_the_group() -> None:
    async with asking() as made:
        notice = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, ONEWAY_FLAG)
        notice.ext = {"consumerGroup": "billing"}
        await made.broker.push(notice)
        await until(lambda: made.consumer.changes == 1)


async def test_a_change_in_a_foreign_group_is_nothing_to_complain_about() -> None:
    async with asking() as made:
        answer = await made.broker.push(NotifyConsumerIdsChanged(consumer_group="others"))

        assert answer is not None
        assert answer.code == 0
        assert made.consumer.changes == 0


async def test_offsets_are_reset_by_the_consumer_of_the_group() -> None:
    async with asking() as made:
        answer = await made.broker.push(RESET, body=reset_body({QUEUE: 7}))

        assert answer is not None
        assert answer.code == 0
        assert made.consumer.resets == [{QUEUE: 7}]


async def test_resets_that_hang_do_not_hold_up_other_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_from_broker, "RESET_SECONDS", 0.01)
    consumer = HangingConsumer()
    async with asking(consumer) as made:
        answers = [await made.broker.push(RESET, body=reset_body({QUEUE: 7})) for _ in range(9)]

        assert [answer.code for answer in answers if answer] == [0] * 9
        assert consumer.resets == [{QUEUE: 7}] * 9


async def test_resets_that_make_no_sense_are_left_out() -> None:
    async with asking() as made:
        foreign = MessageQueue("payments", "broker-a", 0)
        negative = MessageQueue("orders", "broker-a", 1)
        body = reset_body({QUEUE: 7, foreign: 1, negative: -5})
        await made.broker.push(RESET, body=body)

        assert made.consumer.resets == [{QUEUE: 7}]


async def test_a_reset_for_a_foreign_group_is_rejected() -> None:
    async with asking() as made:
        foreign = ResetOffset(group="others", topic="orders", timestamp=0, is_force=True)
        answer = await made.broker.push(foreign, body=reset_body({QUEUE: 7}))

        assert answer is not None
        assert answer.code != 0
        assert "others" in str(answer.remark)
        assert made.consumer.resets == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"offsetTable":{"x":1}}', b"\xff"])
async def test_a_reset_that_cannot_be_read_is_answered_and_changes_nothing(body: bytes) -> None:
    async with asking() as made:
        answer = await made.broker.push(RESET, body=body)

        assert answer is not None
        assert not any(made.consumer.resets)


async def test_group_progress_has_offsets_and_lag() -> None:
    async with asking() as made:
        answer = await made.broker.push(GetConsumerStatus(topic="orders", group="billing"))

        assert answer is not None
        assert answer.code == 0
        expected = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
        assert answer.body.startswith(expected + b":42}")


async def test_consumer_status_has_the_positions() -> None:
    async with asking() as made:
        asked = GetConsumerRunningInfo(consumer_group="billing", client_id="me")
        answer = await made.broker.push(asked)

        assert answer is not None
        assert msgspec.json.decode(answer.body)["properties"] == {"PROP_CLIENT_VERSION": "x"}


async def test_own_id_requests_reach_the_consumer() -> None:
    async with asking() as made:
        for check_id in (None, "abc"):
            await made.broker.push(
                GetConsumerRunningInfo(consumer_group="billing", client_id="me", check_id=check_id)
            )

        assert made.consumer.check_ids == ["abc"]


async def test_running_info_has_stacks_only_on_request() -> None:
    async with asking() as made:
        for wanted in (False, True):
            asked = GetConsumerRunningInfo(
                consumer_group="billing", client_id="me", jstack_enable=wanted
            )
            answer = await made.broker.push(asked)

            assert answer is not None
            assert (
                "thread MainThread" in str(msgspec.json.decode(answer.body)["jstack"])
            ) == wanted


# --- direct consumption -------------------------------------------------------------------------

DIRECT = ConsumeMessageDirectly(consumer_group="billing", client_id="me", broker_name="broker-a")
RECORD = Stored().to_bytes()


async def test_a_handler_is_tried_with_one_message() -> None:
    consumer = HandlingConsumer()
    async with asking(consumer) as made:
        answer = await made.broker.push(DIRECT, body=RECORD)

        assert answer is not None
        assert answer.code == 0
        assert msgspec.json.decode(answer.body) == {
            "consumeResult": "CR_LATER",
            "order": False,
            "autoCommit": True,
            "remark": "busy",
            "spentTimeMills": 0,
        }
        ((message, broker_name),) = consumer.handled
        assert (message.body, message.tags, broker_name) == (b"hello", "paid", "broker-a")
        assert message.queue == MessageQueue("orders", "broker-a", 3)


async def test_a_direct_consume_that_does_not_end_is_cancelled_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests_from_broker, "DIRECT_SECONDS", 0.01)
    consumer = HandlingConsumer()
    consumer.may_end.clear()
    async with asking(consumer) as made:
        answer = await made.broker.push(DIRECT, body=RECORD)

        assert answer is not None
        result = msgspec.json.decode(answer.body)
        assert result["consumeResult"] == "CR_THROW_EXCEPTION"
        assert "not done within 0.01 s" in result["remark"]


async def test_handlers_of_direct_consumes_delay_no_other_request() -> None:
    consumer = HandlingConsumer()
    consumer.may_end.clear()
    async with asking(consumer) as made:
        direct = [
            asyncio.ensure_future(made.broker.push(DIRECT, body=RECORD)) for _ in range(WORKERS + 1)
        ]
        await until(lambda: len(consumer.handled) >= WORKERS)
        async with asyncio.timeout(2):
            answer = await made.broker.push(GetConsumerStatus(topic="orders", group="billing"))
        consumer.may_end.set()
        answers = await asyncio.gather(*direct)

    assert answer is not None
    assert [each.code for each in (answer, *answers) if each is not None] == [0] * (WORKERS + 2)


async def test_a_consumer_without_a_handler_rejects_direct_consumption() -> None:
    async with asking() as made:
        answer = await made.broker.push(DIRECT, body=RECORD)

        assert answer is not None
        assert answer.code == 3
        assert "has no handler" in str(answer.remark)


@pytest.mark.parametrize("body", [b"", b"x" * 200, RECORD[:-1], RECORD * 2])
async def test_a_message_that_cannot_be_read_is_not_tried(body: bytes) -> None:
    consumer = HandlingConsumer()
    async with asking(consumer) as made:
        answer = await made.broker.push(DIRECT, body=body)

        assert answer is not None
        assert answer.code == 1
        assert "CodecError" in str(answer.remark)
        assert consumer.handled == []


async def test_checks_of_transactions_without_a_producer_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asking() as made:
        for _ in range(3):
            check = Command(RequestCode.CHECK_TRANSACTION_STATE, 0, ONEWAY_FLAG, body=RECORD)
            check.ext = {"tranStateTableOffset": "0", "commitLogOffset": "0"}
            await made.broker.push(check)
        await made.broker.push(NotifyConsumerIdsChanged(consumer_group="billing"))
        await until(lambda: made.consumer.changes == 1)

        assert caplog.text.count("transaction_check_without_producer") == 1


# --- switched off -------------------------------------------------------------------------------


async def test_offset_resets_can_be_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    async with asking(allow_offset_resets=False) as made:
        answers = [await made.broker.push(RESET, body=reset_body({QUEUE: 7})) for _ in range(3)]

        answer = answers[-1]
        assert answer is not None
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "allow_offset_resets" in str(answer.remark)
        assert made.consumer.resets == []
        assert caplog.text.count("broker_request_refused") == 1


async def test_direct_consumption_can_be_switched_off() -> None:
    consumer = HandlingConsumer()
    async with asking(consumer, allow_direct_consumption=False) as made:
        answer = await made.broker.push(DIRECT, body=RECORD)

        assert answer is not None
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "allow_direct_consumption" in str(answer.remark)
        assert consumer.handled == []


async def test_stack_dumps_can_be_switched_off_and_other_running_info_stays() -> None:
    async with asking(allow_stack_dumps=False) as made:
        for wanted in (False, True):
            asked = GetConsumerRunningInfo(
                consumer_group="billing", client_id="me", jstack_enable=wanted
            )
            answer = await made.broker.push(asked)

            assert answer is not None
            info = msgspec.json.decode(answer.body)
            assert info["properties"] == {"PROP_CLIENT_VERSION": "x"}
            assert ("allow_stack_dumps" in str(info["jstack"])) == wanted
            assert "thread" not in str(info["jstack"])


# --- the rest -----------------------------------------------------------------------------------


async def test_unknown_broker_requests_are_answered_not_supported() -> None:
    async with asking() as made:
        answer = await made.broker.push(Command(12345, 0))

        assert answer is not None
        assert answer.code == 3
        assert "12345" in str(answer.remark)


async def test_a_command_without_its_fields_is_answered_with_an_error() -> None:
    async with asking() as made:
        answer = await made.broker.push(Command(RequestCode.GET_CONSUMER_RUNNING_INFO, 0))

        assert answer is not None
        assert answer.code == 1
        assert "CodecError" in str(answer.remark)


async def test_a_flood_of_notices_does_not_keep_others_waiting() -> None:
    async with asking() as made:
        for _ in range(5000):
            notice = Command(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 0, ONEWAY_FLAG)
            notice.ext = {"consumerGroup": "billing"}
            await made.broker.push(notice)
        await until(lambda: made.consumer.changes >= 1000)
        await asyncio.sleep(0)
        answer = await made.broker.push(GetConsumerStatus(topic="orders", group="billing"))

        assert answer is not None
        assert answer.code == 0


async def test_an_unexpected_reply_is_dropped_before_its_body_is_inflated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inflated: list[bytes] = []

    def inflate(data: bytes, sys_flag: int) -> bytes:
        inflated.append(data)
        return data

    monkeypatch.setattr(reply_bodies, "inflate", inflate)
    pending = PendingReplies()
    async with asking(replies=pending) as made:
        expected = pending.expect("mine", monotonic() + 60)
        for correlation_id in ("forged", "mine", "mine"):
            answer = await made.broker.push(
                PushReplyMessage(
                    born_host="127.0.0.1:1",
                    store_host="127.0.0.1:2",
                    store_timestamp=0,
                    producer_group="shop",
                    topic="orders",
                    default_topic="",
                    default_topic_queue_nums=4,
                    queue_id=0,
                    sys_flag=COMPRESSED,
                    born_timestamp=0,
                    flag=0,
                    properties=f"CORRELATION_ID\x01{correlation_id}\x02",
                ),
                body=b"bomb",
            )
            assert answer is not None
            assert (answer.code, answer.remark) == (0, None)

        assert (await expected) is not None
        assert len(inflated) == 1
        assert pending.dropped == 2
        pending.forget("mine")
