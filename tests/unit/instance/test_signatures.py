"""Signatures: every kind of request is signed when there are credentials."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from rocketmq_aio.config.client import ClientConfig, Credentials, HeaderEncoding
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.errors import NotConnectedError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.values import MessageSelector
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.protocol.codes import RequestCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.broker import FakeBroker
from tests.fakes.cluster import FakeCluster
from tests.unit.instance.client_env import nothing_left
from tests.unit.remoting.clients import open_client

ACCOUNT = Credentials(access_key="admin", secret_key="adminsecret", security_token="token")
KINDS = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
}
PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}


def is_signed(command: Command) -> bool:
    """Whether the signature is right, by the rule itself and not by the client's code."""
    fields = dict(command.ext_fields())
    given = fields.pop("Signature", "")
    signed = "".join(value for _, value in sorted(fields.items())).encode() + command.body
    right = hmac.new(ACCOUNT.secret_key.encode(), signed, hashlib.sha1).digest()
    return base64.b64decode(given) == right and fields["AccessKey"] == ACCOUNT.access_key


async def produce(config: ClientConfig) -> None:
    async with Producer("shop", client=config) as producer:
        message = Message("orders", "訂單".encode(), tags="new", properties={"färbe": "röt"})
        await producer.send(message)
        await producer.send_batch([message, message])
        await producer.send_oneway(message)


async def consume(config: ClientConfig) -> None:
    async with LitePullConsumer("billing", client=config) as consumer:
        await consumer.subscribe("orders", MessageSelector.by_sql("price > 3"))
        await consumer.poll(timeout_seconds=0.5)
        await consumer.commit()
        (queue, *_) = consumer.assignment()
        await consumer.seek_to_begin(queue)
        await consumer.seek_to_end(queue)
        await consumer.offset_for_time(queue, datetime(2026, 1, 1, tzinfo=UTC))
        await consumer.committed(queue)


@pytest.mark.parametrize("encoding", ["json", "rocketmq"])
async def test_every_kind_of_request_is_signed(encoding: HeaderEncoding) -> None:
    async with nothing_left(), FakeCluster(topics={"orders": 1}) as cluster:
        config = ClientConfig(
            namesrv=cluster.namesrv, credentials=ACCOUNT, header_encoding=encoding
        )
        await produce(config)
        await consume(config)

        asked = [
            frame.command
            for server in (cluster.name_server, cluster.broker)
            for frame in server.requests
        ]
        assert [each.code for each in asked if not is_signed(each)] == []
        kinds = {each.code for each in asked}
        assert kinds >= KINDS
        assert kinds & PULLS
        shown = " ".join(str(each.ext_fields()) for each in asked)
        assert "adminsecret" not in shown


async def test_each_request_is_signed_with_the_credentials_of_that_moment() -> None:
    accounts = [Credentials(access_key=name, secret_key="secret") for name in ("old", "new")]
    async with nothing_left(), FakeCluster(topics={"orders": 1}) as cluster:
        config = ClientConfig(namesrv=cluster.namesrv, credentials=lambda: accounts[0])
        async with Producer("shop", client=config) as producer:
            await producer.send(Message("orders", b"1"))
            accounts.pop(0)
            await producer.send(Message("orders", b"2"))

        sends = [
            dict(frame.command.ext_fields())["AccessKey"]
            for frame in cluster.broker.requests
            if frame.command.code == RequestCode.SEND_MESSAGE_V2
        ]
        assert sends == ["old", "new"]


def _unavailable() -> Credentials:
    raise OSError("canary")


def _of_another_type() -> Credentials:
    return {"secret_key": "canary"}  # type: ignore[return-value]  # a mistake


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        (_unavailable, "credentials() raised OSError"),
        (_of_another_type, "credentials() returned dict, expected Credentials"),
    ],
)
async def test_a_request_without_credentials_is_not_sent(
    credentials: Callable[[], Credentials], reason: str
) -> None:
    async with nothing_left(), FakeBroker() as broker:
        async with open_client(ClientConfig(credentials=credentials)) as opened:
            with pytest.raises(NotConnectedError) as caught:
                await opened.ask(broker.address)

        assert caught.value.reason == reason
        assert broker.requests == []
