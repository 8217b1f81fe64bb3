"""Reader of queues of real and fake brokers, independent of the client's code.

Tests verify the stored messages with it, so that a bug in the client's codec is not hidden.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

from rocketmq_aio.model.values import MessageQueue
from tests.history.events import UID, LogEntry, short_body

PULL: Final = 11
COMPRESSED: Final = 1
USE_SUBSCRIPTION: Final = 4  # without long polling
FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21
SECONDS: Final = 10.0
MAX_PULLS: Final = 100_000


async def read_queue(address: str, queue: MessageQueue) -> list[LogEntry]:
    """Return all messages of a queue."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        entries: list[LogEntry] = []
        offset = 0
        for _ in range(MAX_PULLS):
            async with asyncio.timeout(SECONDS):
                header, body = await _pull(reader, writer, queue, offset)
            if header["code"] == NOT_FOUND:
                return entries
            if header["code"] not in (FOUND, RETRY, MOVED):
                raise ValueError(f"{queue}: {header}")
            entries += records(body, queue)
            offset = int(header["extFields"]["nextBeginOffset"])
        raise ValueError(f"{queue} has no end")
    finally:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _pull(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, queue: MessageQueue, offset: int
) -> tuple[dict[str, Any], bytes]:
    fields = {
        "consumerGroup": "log-reader",
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": str(USE_SUBSCRIPTION),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }
    header = json.dumps(
        {"code": PULL, "opaque": 1, "flag": 0, "version": 399, "extFields": fields}
    ).encode()
    writer.write(struct.pack(">II", 4 + len(header), len(header)) + header)
    length, header_length = struct.unpack(">II", await reader.readexactly(8))
    frame = await reader.readexactly(length - 4)
    return json.loads(frame[:header_length]), frame[header_length:]


def records(body: bytes, queue: MessageQueue) -> Iterator[LogEntry]:
    """Yield the records of a pull response; hosts must be IPv4, compressed bodies are zlib."""
    at = 0
    while at < len(body):
        (size,) = struct.unpack_from(">i", body, at)
        record = body[at : at + size]
        at += size
        (offset,) = struct.unpack_from(">q", record, 20)
        (flag,) = struct.unpack_from(">i", record, 36)
        (length,) = struct.unpack_from(">i", record, 84)
        end = 88 + length
        stored = record[88:end]
        properties_at = end + 1 + record[end] + 2
        pairs = (pair.split("\x01") for pair in record[properties_at:].decode().split("\x02"))
        properties = {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
        yield LogEntry(
            queue=queue,
            offset=offset,
            body=short_body(zlib.decompress(stored) if flag & COMPRESSED else stored),
            message_id=properties.get("UNIQ_KEY", ""),
            uid=properties.get(UID, ""),
            tags=properties.get("TAGS"),
        )
