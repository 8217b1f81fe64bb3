"""Reads topics from a real broker without using the client's code."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rocketmq_aio.testing import Broker, Cluster, probe

PULL: Final = 11
RUNTIME_INFO: Final = 28
USE_SUBSCRIPTION: Final = 4  # and do not wait
FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21
COMPRESSED: Final = 1
LZ4, ZSTD = 1, 2
MAX_PULLS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One message as the broker holds it; *body* is inflated if it was compressed."""

    broker_name: str
    queue_id: int
    offset: int
    log_offset: int
    flag: int
    sys_flag: int
    body: bytes
    raw_bytes: int
    properties: dict[str, str]

    @property
    def message_id(self) -> str:
        return self.properties["UNIQ_KEY"]


def read_topic(cluster: Cluster, topic: str, queues: int = 4) -> list[Stored]:
    """Return all messages of a topic, by broker and queue."""
    for broker in cluster.brokers:
        _wait_until_dispatched(broker)
    return [
        stored
        for broker in cluster.brokers
        for queue_id in range(queues)
        for stored in read_queue(broker, topic, queue_id)
    ]


def wait_for_messages(
    cluster: Cluster, topic: str, count: int, *, queues: int = 4, seconds: float = 30.0
) -> list[Stored]:
    """Return the messages of a topic when it holds *count*."""
    deadline = time.monotonic() + seconds
    while len(found := read_topic(cluster, topic, queues)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} holds {len(found)} messages, not {count}")
        time.sleep(0.1)
    return found


def read_queue(broker: Broker, topic: str, queue_id: int) -> list[Stored]:
    """Return all messages of one queue; none if the broker does not have the queue."""
    found: list[Stored] = []
    for _ in range(MAX_PULLS):
        body = _pull(broker, topic, queue_id, found[-1].offset + 1 if found else 0)
        if body is None:
            return found
        found += _records(body, broker.name)
    raise ValueError(f"{topic}/{queue_id} has no end")


def _wait_until_dispatched(broker: Broker) -> None:
    """Wait until stored messages are in the queues: brokers acknowledge earlier."""

    def check() -> None:
        table = json.loads(probe.request(broker.address, RUNTIME_INFO).body)["table"]
        if table["dispatchBehindBytes"] != "0":
            raise probe.ProbeError(f"{table['dispatchBehindBytes']} bytes to go")

    probe.wait_until(check, seconds=60, what=f"{broker.name} is not up to date")


def _pull(broker: Broker, topic: str, queue_id: int, offset: int) -> bytes | None:
    fields = {
        "consumerGroup": "tests-of-the-broker",
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": USE_SUBSCRIPTION,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    reply = probe.request(broker.address, PULL, fields)
    if reply.code == FOUND:
        return reply.body
    if reply.code in (NOT_FOUND, RETRY, MOVED):
        return None
    raise ValueError(f"{topic}/{queue_id}@{offset}: {reply.code} {reply.remark}")


def _records(body: bytes, broker_name: str) -> Iterator[Stored]:
    at = 0
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        yield _record(body[at : at + size], broker_name)
        at += size


def _record(record: bytes, broker_name: str) -> Stored:
    queue_id, flag, offset, log_offset, sys_flag = struct.unpack_from(">iiqqi", record, 12)
    (length,) = struct.unpack_from(">i", record, 84)  # hosts are IPv4 here
    end = 88 + length
    properties_at = end + 1 + record[end] + 2
    pairs = (pair.split("\x01", 1) for pair in record[properties_at:].decode().split("\x02"))
    return Stored(
        broker_name=broker_name,
        queue_id=queue_id,
        offset=offset,
        log_offset=log_offset,
        flag=flag,
        sys_flag=sys_flag,
        body=_inflated(record[88:end], sys_flag),
        raw_bytes=length,
        properties={pair[0]: pair[1] for pair in pairs if len(pair) == 2},
    )


def _inflated(body: bytes, sys_flag: int) -> bytes:
    if not sys_flag & COMPRESSED:
        return body
    kind = sys_flag >> 8 & 7
    if kind == LZ4:
        import lz4.frame

        return bytes(lz4.frame.decompress(body))
    if kind == ZSTD:
        import zstandard

        return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    return zlib.decompress(body)
