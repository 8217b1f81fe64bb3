"""Secrets are never shown: not by clients, hooks, refusals or broken handshakes, at DEBUG level."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Final

import anyio
import pytest

from rocketmq_aio import (
    ClientConfig,
    Credentials,
    LitePullConsumer,
    Message,
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
from tests.fakes.cluster import FakeCluster
from tests.fakes.tls import client_context, server_context

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
    sends = ProducerConfig(send_timeout_seconds=0.5, retries=1)
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
        for code in (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.HEART_BEAT,
            RequestCode.PULL_MESSAGE,
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.POP_MESSAGE,
        ):
            cluster.broker.on(code, REFUSED, times=None)
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

    words = "certificate verify failed" if trusted else "it may ask for TLS"
    assert words in "".join(map(str, shown))
    check(shown, caplog.text)
