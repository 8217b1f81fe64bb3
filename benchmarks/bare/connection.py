"""A yardstick: one connection with nothing around it, the least a client in Python can do.

No reconnect, no TLS, no signing, no routes.  BufferedProtocol over one reused buffer, a Future per
request, writes of one turn of the loop joined, one sweep for all deadlines.
"""

from __future__ import annotations

import asyncio
import json
import socket
from struct import Struct
from typing import Any, Final, cast

import msgspec

LANGUAGE_PYTHON: Final = 3
VERSION: Final = 479
BINARY: Final = 1 << 24
SWEEP_SECONDS: Final = 0.05
RECEIVE_BYTES: Final = 256 * 1024
FIXED_HEAD: Final = 21

_PREFIX: Final = Struct(">II")
_REQUEST_HEAD: Final = Struct(">iIhBhiiii")
_REPLY_HEAD: Final = Struct(">hBhiii")
_WORD: Final = Struct(">i")


class Reply(msgspec.Struct):
    """The header of an answer; JSON fields stay as they came until their reader decodes them."""

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    raw_fields: msgspec.Raw = msgspec.field(name="extFields", default=msgspec.Raw(b"{}"))
    binary_fields: dict[str, str] | None = None  # of an answer in the ROCKETMQ encoding

    def fields(self) -> dict[str, str]:
        """Return the ext fields as text, whatever their encoding."""
        if self.binary_fields is not None:
            return self.binary_fields
        return msgspec.json.decode(self.raw_fields, type=dict[str, str])


_decode_json: Final = msgspec.json.Decoder(Reply).decode


def decode_binary(header: bytes) -> Reply:
    """Read an answer in the ROCKETMQ encoding, which 4.9 brokers give to such requests."""
    code, _, _, opaque, flag, remark = _REPLY_HEAD.unpack_from(header)
    at, fields = FIXED_HEAD + remark, {}
    while at < len(header):
        value_at = at + 6 + (header[at] << 8 | header[at + 1])
        end = value_at + _WORD.unpack_from(header, value_at - 4)[0]
        fields[header[at + 2 : value_at - 4].decode()] = header[value_at:end].decode()
        at = end
    text = header[17 : 17 + remark].decode() or None
    return Reply(code, opaque, flag, text, binary_fields=fields)


def entry(name: str, value: str) -> bytes:
    """Return one ext field in the ROCKETMQ encoding."""
    key, text = name.encode(), value.encode()
    return len(key).to_bytes(2, "big") + key + len(text).to_bytes(4, "big") + text


def binary_head(code: int, opaque: int, fields: bytes, body_length: int) -> bytes:
    """Return everything of a request frame that precedes its body."""
    header = FIXED_HEAD + len(fields)
    head = _REQUEST_HEAD.pack(
        4 + header + body_length, BINARY | header, code, LANGUAGE_PYTHON, VERSION, opaque, 0, 0,
        len(fields),
    )  # fmt: skip
    return head + fields


class Connection(asyncio.BufferedProtocol):
    """Requests and answers over one socket; :func:`connect` opens one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.opaque = 0
        self._pending: dict[int, tuple[asyncio.Future[tuple[Reply, bytes]], float]] = {}
        self._outgoing: list[bytes] = []
        self._last_flush = 1
        self._writable: asyncio.Future[None] | None = None
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._chunks: list[bytes] = []
        self._have = self._need = 0
        self._sweep = loop.call_later(SWEEP_SECONDS, self._expire)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        self._sweep.cancel()
        self._transport.close()

    def pause_writing(self) -> None:
        self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None:
            writable.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        if self._chunks:
            self._chunks.append(data)
            self._have += nbytes
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks = []
        at = self._deliver(data)
        if at < len(data):
            self._chunks = [data[at:]]
            self._have = len(data) - at

    def _deliver(self, data: bytes) -> int:
        at, length, take = 0, len(data), self._pending.pop
        while True:
            if length - at < _PREFIX.size:
                self._need = _PREFIX.size
                return at
            total, word = _PREFIX.unpack_from(data, at)
            end = at + 4 + total
            if end > length:
                self._need = 4 + total
                return at
            body_at = at + 8 + (word & 0xFFFFFF)
            header = data[at + 8 : body_at]
            reply: Reply = decode_binary(header) if word >> 24 else _decode_json(header)
            waiter = take(reply.opaque, None) if reply.flag & 1 else None
            if waiter is not None and not waiter[0].done():
                waiter[0].set_result((reply, data[body_at:end]))
            at = end

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        self._last_flush = len(outgoing) // 2
        self._transport.write(b"".join(outgoing))

    async def request(
        self, head: bytes, body: bytes, opaque: int, timeout: float = 3.0
    ) -> tuple[Reply, bytes]:
        """Send a frame and return the header and the body of its answer."""
        if self._writable is not None:
            await asyncio.shield(self._writable)
        pending, loop = self._pending, self.loop
        answer: asyncio.Future[tuple[Reply, bytes]] = loop.create_future()
        if pending or self._last_flush > 1 or self._outgoing:
            self._outgoing.append(head)
            self._outgoing.append(body)
            if len(self._outgoing) == 2:
                loop.call_soon(self._flush)
        else:
            self._transport.write(head + body)
        pending[opaque] = (answer, loop.time() + timeout)
        try:
            return await answer
        except BaseException:
            pending.pop(opaque, None)
            raise

    async def json_request(
        self, code: int, fields: dict[str, str], body: bytes = b""
    ) -> tuple[Reply, bytes]:
        """Send a request off the hot path, as JSON."""
        opaque = self.next_opaque()
        header = json.dumps(
            {"code": code, "extFields": fields, "flag": 0, "language": "PYTHON", "opaque": opaque,
             "version": VERSION}
        ).encode()  # fmt: skip
        head = _PREFIX.pack(4 + len(header) + len(body), len(header)) + header
        return await self.request(head, body, opaque)

    def next_opaque(self) -> int:
        self.opaque = opaque = (self.opaque + 1) & 0x7FFFFFFF
        return opaque

    def _expire(self) -> None:
        now = self.loop.time()
        for opaque in [key for key, (_, deadline) in self._pending.items() if deadline <= now]:
            answer, _ = self._pending.pop(opaque)
            if not answer.done():
                answer.set_exception(TimeoutError())
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._expire)


async def connect(address: str) -> Connection:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(loop), host, int(port))
    return connection


async def find_broker(namesrv: str, topic: str) -> tuple[str, str, int]:
    """Return the address and the name of the topic's only broker, and how many queues it has."""
    nameserver = await connect(namesrv)
    fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
    reply, body = await nameserver.json_request(105, fields)
    nameserver.close()
    if reply.code:
        raise RuntimeError(f"no route for {topic}: {reply.remark}")
    route: dict[str, Any] = json.loads(body)
    queues = route["queueDatas"][0]
    return (
        route["brokerDatas"][0]["brokerAddrs"]["0"],
        queues["brokerName"],
        queues["readQueueNums"],
    )
