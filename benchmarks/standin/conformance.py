"""Holds the stand-in against a real broker: the same questions, answers of the same shape."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from benchmarks.bare.connection import Connection, Reply, connect
from benchmarks.bare.pull import Pulled, Queue, decode_messages
from benchmarks.bare.send import Message, Producer

GROUP: Final = "standin-conformance"
CLIENT_ID: Final = "127.0.0.1@conformance"
BROKER: Final = "broker-a"
HEARTBEAT: Final = {
    "clientID": CLIENT_ID,
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": GROUP,
            "consumeType": "CONSUME_ACTIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [],
        }
    ],
}
# A shape: response code, whether each ext field is a number or text, keys of a JSON body.
Shape = tuple[int, dict[str, str], list[str]]


def shapes(address: str, topic: str) -> dict[str, Shape]:
    """Ask the server at *address*, a broker and for the stand-in a name server too.

    *topic* has 16 queues there; a message is sent to it first, so that there is one to pull.
    """
    return asyncio.run(_shapes(address, topic))


async def _shapes(address: str, topic: str) -> dict[str, Shape]:
    connection = await connect(address)
    queue = {"topic": topic, "queueId": "3", "bname": BROKER}
    mine = {**queue, "consumerGroup": GROUP}
    found: dict[str, Shape] = {}

    async def ask(name: str, code: int, fields: Mapping[str, str], body: bytes = b"") -> None:
        found[name] = _shape(*await connection.json_request(code, dict(fields), body))

    await _send(connection, topic)
    await ask("heartbeat", 34, {}, json.dumps(HEARTBEAT).encode())
    await ask("members", 38, {"consumerGroup": GROUP})
    await ask("members of nobody", 38, {"consumerGroup": GROUP + "-unknown"})
    await ask("no offset", 14, {**mine, "setZeroIfNotFound": "false"})
    await ask("first offset", 14, mine)
    await ask("commit", 15, {**mine, "commitOffset": "1"})
    await ask("offset", 14, mine)
    await ask("max offset", 30, queue)
    await ask("min offset", 31, queue)
    await ask("search", 29, {**queue, "timestamp": "0"})
    await ask("send", 310, _send_fields(topic), b"body")
    for name, code, flags in (("pull", 11, "6"), ("lite pull", 361, "22")):
        await ask(name, code, _pull_fields(mine, flags))
    await ask("leave", 35, {"clientID": CLIENT_ID, "consumerGroup": GROUP})
    await ask("unknown code", 31999, {})
    connection.close()
    return found


async def pulled(address: str, topic: str) -> Pulled:
    """Return the first message of the queue that :func:`shapes` sent to."""
    connection = await connect(address)
    mine = {"topic": topic, "queueId": "3", "bname": BROKER, "consumerGroup": GROUP}
    _, body = await connection.json_request(11, _pull_fields(mine, "6"))
    connection.close()
    return decode_messages(body, Queue(3))[0]


async def _send(connection: Connection, topic: str) -> None:
    producer = Producer(connection, topic, BROKER, 16)
    for _ in range(16):  # once around: one for every queue
        await producer.send(Message(topic, b"body", {"TAGS": "TagA"}))
    result = await producer.send_batch([Message(topic, b"body", {})] * 3)
    assert result.offset_message_id.count(",") == 2


def _send_fields(topic: str) -> dict[str, str]:
    return {
        "a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1763668800123",
        "h": "0", "i": "TAGS\x01TagA\x02", "j": "0", "k": "false", "m": "false", "n": BROKER,
    }  # fmt: skip


def _pull_fields(mine: dict[str, str], flags: str) -> dict[str, str]:
    return {
        **mine, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": flags, "commitOffset": "0",
        "suspendTimeoutMillis": "1000", "subscription": "*", "subVersion": "0",
        "expressionType": "TAG",
    }  # fmt: skip


def _shape(reply: Reply, body: bytes) -> Shape:
    kinds = {name: "number" if text.isdigit() else "text" for name, text in reply.fields().items()}
    return reply.code, dict(sorted(kinds.items())), _keys(body)


def _keys(body: bytes) -> list[str]:
    try:
        parsed: Any = json.loads(body)
    except ValueError:
        return ["stored messages"] if body else []
    return sorted(parsed)
