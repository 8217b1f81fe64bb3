"""Access control of the embedded broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pytest

from rocketmq_aio.config.client import Credentials
from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.remoting.acl import sign
from rocketmq_aio.testing import Account
from tests.fakes.raw_client import RawClient

ADMIN: Final = Account(access_key="administrator", secret_key="admin-secret", admin=True)
READER: Final = Account(
    access_key="reader-1", secret_key="reader-secret", topics={"orders": "SUB"}, groups={"g": "SUB"}
)
PULL: Final = {"topic": "orders", "consumerGroup": "g", "queueId": "0", "queueOffset": "0"}


async def response(
    client: RawClient,
    account: Account | None,
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> Command:
    fields = dict(ext or {})
    if account is not None:
        key = Credentials(access_key=account.access_key, secret_key=account.secret_key)
        sign(fields, body, key)
    return await client.answer(client.send_fields(code, fields, body))


@pytest.fixture(params=["4.9.7", "5.5.0"])
def broker(request: pytest.FixtureRequest) -> EmbeddedBroker:
    broker = EmbeddedBroker(version=request.param, accounts=[ADMIN, READER])
    broker.create_topic("orders")
    return broker


def is_5(broker: EmbeddedBroker) -> bool:
    return broker.version.is_5


async def test_requests_without_an_account_are_rejected(broker: EmbeddedBroker) -> None:
    unknown = Account(access_key="nobody-1", secret_key="secret-1")
    wrong = Account(access_key="reader-1", secret_key="other-secret")
    async with broker, RawClient(broker.address) as client:
        found = [
            await response(client, account, RequestCode.GET_BROKER_RUNTIME_INFO)
            for account in (None, unknown, wrong)
        ]

    if is_5(broker):
        assert [(each.code, each.remark) for each in found] == [
            (16, "username cannot be null."),
            (16, "User:nobody-1 is not found."),
            (16, "check signature failed."),
        ]
    else:
        assert {each.code for each in found} == {1}
        remarks = [(each.remark or "").removeprefix("org.apache.rocketmq.acl.") for each in found]
        assert remarks == [
            "common.AclException: No accessKey is configured",
            "common.AclException: No acl config for nobody-1",
            "common.AclException: Check signature failed for accessKey=reader-1",
        ]


async def test_an_account_needs_a_permission_for_each_resource(broker: EmbeddedBroker) -> None:
    send = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    async with broker, RawClient(broker.address) as client:
        sent = await response(client, READER, RequestCode.SEND_MESSAGE_V2, send, b"x")
        pulled = await response(client, READER, RequestCode.PULL_MESSAGE, {**PULL, "topic": "pay"})
        other = {**PULL, "consumerGroup": "other"}
        grouped = await response(client, READER, RequestCode.PULL_MESSAGE, other)

    denied = ResponseCode.NO_PERMISSION if is_5(broker) else ResponseCode.SYSTEM_ERROR
    for answer, resource in ((sent, "opic:orders"), (pulled, "opic:pay"), (grouped, "roup:other")):
        assert answer.code == denied
        assert resource in (answer.remark or "")


async def test_groups_of_producers_need_no_permission(broker: EmbeddedBroker) -> None:
    async with broker, RawClient(broker.address) as client:
        answers = [
            await response(client, READER, RequestCode.UNREGISTER_CLIENT, {"clientID": "c", **ext})
            for ext in (
                {"producerGroup": "other"},
                {"producerGroup": "other", "consumerGroup": "g"},
                {"consumerGroup": "other"},
                {"producerGroup": "other", "consumerGroup": "other"},
            )
        ]

    assert [each.code == 0 for each in answers] == [True, True, False, False]


async def test_only_administrators_create_topics(broker: EmbeddedBroker) -> None:
    ext = {"topic": "new", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    async with broker, RawClient(broker.address) as client:
        refused = await response(client, READER, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
        made = await response(client, ADMIN, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    assert refused.code != 0
    assert made.code == 0
    assert "new" in broker.topics


async def test_users_and_permissions_are_administered() -> None:
    broker = EmbeddedBroker(accounts=[ADMIN])
    writer = Account(access_key="writer-1", secret_key="writer-secret")
    user = json.dumps({"username": "writer-1", "password": "writer-secret", "userType": "Normal"})
    entry = {"resource": "Topic:ord*", "actions": ["Get"], "decision": "Allow"}
    acl = json.dumps({"subject": "User:writer-1", "policies": [{"entries": [entry]}]})
    named, subject = {"username": "writer-1"}, {"subject": "User:writer-1"}
    query = {"topic": "orders", "queueId": "0"}
    async with broker, RawClient(broker.address) as client:
        for code, ext, body in (
            (RequestCode.AUTH_CREATE_USER, named, user),
            (RequestCode.AUTH_CREATE_ACL, subject, acl),
        ):
            assert (await response(client, ADMIN, code, ext, body.encode())).code == 0
        allowed = await response(client, writer, RequestCode.GET_MAX_OFFSET, query)
        shown = await response(client, ADMIN, RequestCode.AUTH_GET_ACL, subject)
        await response(client, ADMIN, RequestCode.AUTH_DELETE_ACL, subject)
        denied = await response(client, writer, RequestCode.GET_MAX_OFFSET, query)
        await response(client, ADMIN, RequestCode.AUTH_DELETE_USER, named)
        unknown = await response(client, writer, RequestCode.GET_MAX_OFFSET, query)

    assert allowed.code == 0
    assert json.loads(shown.body)["policies"][0]["entries"] == [entry | {"sourceIps": []}]
    assert denied.remark is not None
    assert denied.remark.endswith("Topic:orders from 127.0.0.1, no matched policies.")
    assert unknown.remark == "User:writer-1 is not found."


async def test_users_and_policies_are_those_of_a_real_broker() -> None:
    broker = EmbeddedBroker(accounts=[ADMIN])
    named, subject = {"username": "writer-1"}, {"subject": "User:writer-1"}
    unknown = json.dumps({"subject": "User:nobody", "policies": []}).encode()

    def user(**fields: str) -> bytes:
        return json.dumps({**named, **fields}).encode()

    requests: tuple[tuple[int, Mapping[str, str], bytes], ...] = (
        (RequestCode.AUTH_UPDATE_USER, named, user(password="one")),
        (RequestCode.AUTH_CREATE_USER, named, user(password="one", userStatus="disable")),
        (RequestCode.AUTH_CREATE_USER, named, user(password="one")),
        (RequestCode.AUTH_UPDATE_USER, named, user(password="two")),
        (RequestCode.AUTH_DELETE_ACL, subject, b""),
        (RequestCode.AUTH_GET_ACL, {"subject": "User:nobody"}, b""),
        (RequestCode.AUTH_CREATE_ACL, {"subject": "User:nobody"}, unknown),
    )
    async with broker, RawClient(broker.address) as client:
        answers = [await response(client, ADMIN, *request) for request in requests]
        changed = await response(client, ADMIN, RequestCode.AUTH_GET_USER, named)

    assert [(each.code, each.remark) for each in answers] == [
        (16, "The user is not exist"),
        (0, None),
        (16, "The user is existed"),
        (0, None),
        (16, "The acl is not exist."),
        (16, "The subject is not exist."),
        (16, "The subject of User:nobody is not exist."),
    ]
    assert json.loads(changed.body) == {
        "username": "writer-1",
        "password": "two",
        "userType": "Normal",
        "userStatus": "disable",
    }


async def test_requests_about_users_need_access_control() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        answer = await response(client, None, RequestCode.AUTH_LIST_USER)

    assert answer.code == 1
    assert answer.remark is not None
    assert answer.remark.startswith("An system error occurred, please try again later.")
