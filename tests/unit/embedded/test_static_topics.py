"""Static topics of the embedded broker."""

from __future__ import annotations

import json
from typing import Any, Final

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from tests.fakes.raw_client import RawClient

CREATE: Final = {
    "topic": "logical",
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "order": "false",
}
ITEM: Final = {"gen": 0, "queueId": 0, "bname": "broker-a", "logicOffset": 0}


async def create(client: RawClient, items: list[dict[str, Any]]) -> Command:
    detail = {"topic": "logical", "bname": "broker-a", "totalQueues": 6, "epoch": 1}
    detail |= {"scope": "__global__", "dirty": False, "hostedQueues": {"3": items}}
    body = json.dumps(detail).encode()
    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    return await client.answer(client.send_fields(code, CREATE, body))


async def send(client: RawClient, queue_id: int) -> Command:
    fields = {"a": "shop", "b": "logical", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
    fields |= {"g": "1", "h": "0", "i": "", "m": "false"}
    code = RequestCode.SEND_MESSAGE_V2
    return await client.answer(client.send_fields(code, fields, b"body"))


async def test_requests_name_logical_queues() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        await create(client, [ITEM])
        sent = await send(client, 3)
        query = {"topic": "logical", "queueId": "3"}
        end = await client.answer(client.send_fields(RequestCode.GET_MAX_OFFSET, query))

    assert sent.ext_fields()["queueId"] == "3"
    assert end.ext_fields() == {"offset": "1"}
    assert [len(log.messages) for log in broker.topics["logical"].queues] == [1]


async def test_queues_of_other_brokers_are_redirected() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        await create(client, [ITEM])
        refused = await send(client, 4)

    assert refused.code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_queues_cannot_be_moved() -> None:
    async with EmbeddedBroker() as broker, RawClient(broker.address) as client:
        refused = await create(client, [ITEM, {**ITEM, "bname": "broker-b"}])

    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "cannot move queues" in (refused.remark or "")
    assert "logical" not in broker.topics
