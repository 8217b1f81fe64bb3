"""Secrets and message data are never shown: at DEBUG level, in errors, reprs, pickles or dumps."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Final

import anyio
import msgspec
import pytest

from rocketmq_aio import (
    ClientConfig,
    Credentials,
    InvalidMessageError,
    JSONCodec,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageTrace,
    MessageUndecodable,
    PopConsumer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RocketMQError,
    RPCHook,
    TransactionProducer,
    TransactionState,
)
from rocketmq_aio.embedded.responses import Response
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.requests.from_broker import GetConsumerRunningInfo
from tests.fakes.cluster import FakeCluster
from tests.fakes.tls import client_context, server_context
from tests.unit.remoting.until import until

SECRET: Final = "canary-9f3a-secret"
TOKEN: Final = "canary-9f3a-token"
ACCOUNT: Final = Credentials(access_key="shop", secret_key=SECRET, security_token=TOKEN)
ORDER: Final = Message("orders", b"x")
Consumer = LitePullConsumer | PushConsumer | PopConsumer
REFUSED: Final = Response(ResponseCode.NO_PERMISSION, remark="check signature failed.")


class FailingHook(RPCHook):
    """Hook that fails before a request is signed and after its response."""

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        raise RuntimeError(f"about {code} with {sorted(ext_fields)}")

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        raise RuntimeError(f"answer {response_code} with {dict(ext_fields)}")


@pytest.fixture(autouse=True)
def everything_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def check(shown: list[object], log: str) -> None:
    """Search all output for the secrets."""
    errors = [each for each in shown if isinstance(each, BaseException)]
    texts = [log, *map(repr, shown), *map(str, shown)]
    texts += ["".join(traceback.format_exception(each)) for each in errors]
    texts += [repr(pickle.dumps(each)) for each in errors]
    texts += [repr(each.__dict__) for each in errors]
    for text in texts:
        assert "canary" not in text
    assert errors


async def everything(config: ClientConfig) -> list[object]:
    """Use every kind of client; return all objects that can be shown."""
    shown: list[object] = [config, config.credentials]
    sends = ProducerConfig(retries=1)
    producer = Producer("shop", client=config, config=sends)
    tx_producer = TransactionProducer(
        "till", check=lambda _: TransactionState.ROLLBACK, client=config, config=sends
    )
    puller = PullConsumer("reader", client=config)
    calls: list[tuple[ClientBase, Callable[[], Awaitable[object]]]] = [
        (producer, lambda: producer.send(ORDER)),
        (producer, lambda: producer.send_batch([ORDER, ORDER])),
        (producer, lambda: producer.send(ORDER, sharding_key="k")),
        (producer, lambda: producer.request(ORDER, 0.5)),
        (
            tx_producer,
            lambda: tx_producer.send_in_transaction(ORDER, lambda _: TransactionState.COMMIT),
        ),
        (puller, lambda: puller.message_queues("orders")),
    ]
    for member in (producer, tx_producer, puller):
        shown += [member, member.client, member.client.remoting]
        try:
            async with member:
                for call in [call for each, call in calls if each is member]:
                    shown.append(await outcome(call()))
        except RocketMQError as error:
            shown.append(error)
    for consumer in consumers(config):
        await consumer.subscribe("orders")
        shown += [consumer, await outcome(a_while(consumer)), consumer]
    return shown


async def outcome(call: Awaitable[object]) -> object:
    """Return what *call* returns or raises."""
    try:
        return await call
    except RocketMQError as error:
        return error


async def a_while(consumer: Consumer) -> None:
    """Run *consumer* briefly."""
    async with consumer:
        with anyio.move_on_after(0.3):
            await anyio.sleep_forever()


def consumers(config: ClientConfig) -> list[Consumer]:
    push = PushConfig(close_timeout_seconds=0)
    return [
        LitePullConsumer("lite", client=config),
        PushConsumer("push", on_message=print, client=config, config=push),
        PopConsumer("pop", client=config),
    ]


async def test_no_secret_is_shown_if_hooks_fail(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        shown = await everything(
            ClientConfig(namesrv=cluster.namesrv, credentials=ACCOUNT, rpc_hooks=(FailingHook(),))
        )
        signed = cluster.broker.requests_of(RequestCode.SEND_MESSAGE_V2)[0].ext_fields()

    assert "Signature" in signed
    assert "rpc_hook_failed" in caplog.text
    check(shown, caplog.text)


async def test_no_secret_is_shown_when_brokers_reject_the_account(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with FakeCluster(topics={"orders": 2}) as cluster:
        cluster.faults.handle(("send", "heartbeat", "pull", "pop"), REFUSED, times=None)
        shown = await everything(ClientConfig(namesrv=cluster.namesrv, credentials=ACCOUNT))

    assert "check signature failed" in "".join(map(str, shown))
    check(shown, caplog.text)


@pytest.mark.parametrize("trusted", [True, False], ids=["untrusted server", "plain client"])
async def test_no_secret_is_shown_when_handshakes_fail(
    trusted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with FakeCluster(topics={"orders": 2}, tls=server_context("localhost")) as cluster:
        shown = await everything(
            ClientConfig(
                namesrv=cluster.namesrv,
                credentials=ACCOUNT,
                tls=client_context("elsewhere") if trusted else False,
                request_timeout_seconds=0.5,
            )
        )

    words = "certificate verify failed" if trusted else "it may require TLS"
    assert words in "".join(map(str, shown))
    check(shown, caplog.text)


# --- message data -------------------------------------------------------------------------------

TRACE: Final = "RMQ_SYS_TRACE_TOPIC"
PRIVATE: Final = Message(
    "orders", b'{"card": "canary-body"}', keys="k1", properties={"card": "canary-property"}
)


class Order(msgspec.Struct):
    """A payload that the private message does not fit."""

    card: int


async def test_no_message_data_is_shown_when_messages_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown: list[object] = [PRIVATE]
    async with FakeCluster(topics={"orders": 2, TRACE: 1}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv)
        sends = ProducerConfig(retries=1)
        trace = MessageTrace(flush_seconds=0.01)
        async with Producer("shop", client=config, config=sends, hooks=[trace]) as producer:
            shown.append(await producer.send(PRIVATE))
            shown += await producer.send_batch([PRIVATE, PRIVATE])
            await until(lambda: cluster.broker.messages(TRACE), "a trace message")
            for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
                cluster.faults.refuse(code, ResponseCode.SYSTEM_ERROR, "disk", times=8)
            shown.append(await outcome(producer.send(PRIVATE)))
            shown.append(await outcome(producer.send_batch([PRIVATE, PRIVATE])))
            shown.append(await outcome(producer.request(PRIVATE, 0.2)))
            with pytest.raises(InvalidMessageError) as invalid:
                Message("orders", PRIVATE.body, properties={"TAGS": SECRET})  # a system name
            shown.append(invalid.value)
        shown += await failed_deliveries(config)
        traced = [each.body for each in cluster.broker.messages(TRACE)]

    assert traced
    assert b"canary" not in b"".join(traced)
    assert "message_failed" in caplog.text
    check(shown, caplog.text)


async def failed_deliveries(config: ClientConfig) -> list[object]:
    """Consume messages that do not fit their type, and whose handler fails; return what is seen."""
    shown: list[object] = []
    failed = anyio.Event()

    async def fail(message: MessageExt) -> None:
        shown.append(message)
        failed.set()
        raise LookupError("no such customer")

    undecodable = anyio.Event()

    def listen(event: object) -> None:
        shown.append(event)
        if isinstance(event, MessageUndecodable):
            undecodable.set()

    push = PushConfig(start_from="earliest", close_timeout_seconds=0)
    typed = PushConfig(
        start_from="earliest", close_timeout_seconds=0, codec=JSONCodec(Order), undecodable="skip"
    )
    for consumer, seen in (
        (
            PushConsumer("push", on_message=fail, client=config, config=push, on_event=listen),
            failed,
        ),
        (
            PushConsumer("typed", on_message=fail, client=config, config=typed, on_event=listen),
            undecodable,
        ),
    ):
        await consumer.subscribe("orders")
        async with consumer:
            with anyio.fail_after(30):
                await seen.wait()
    return shown


async def test_a_stack_dump_has_no_values() -> None:
    answers: list[Command | None] = []
    waiting = anyio.Event()

    async def hold(secret: str) -> None:
        waiting.set()
        await anyio.sleep_forever()
        assert secret

    async with FakeCluster(topics={"orders": 2}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, credentials=ACCOUNT)
        consumer = PushConsumer("push", on_message=print, client=config)
        await consumer.subscribe("orders")
        async with consumer, anyio.create_task_group() as tasks:
            tasks.start_soon(hold, "canary-value")
            await waiting.wait()
            await cluster.broker.wait_for(RequestCode.HEART_BEAT)
            asked = GetConsumerRunningInfo(
                consumer_group="push", client_id=consumer.client.client_id, jstack_enable=True
            )
            connections = [*cluster.broker.connections.values()]
            answers = [await cluster.broker.push(asked, to=each) for each in connections]
            tasks.cancel_scope.cancel()

    (answer,) = answers
    assert answer is not None
    assert "test_a_stack_dump_has_no_values.<locals>.hold" in answer.body.decode()
    assert "canary" not in answer.body.decode()
