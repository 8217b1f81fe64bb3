"""The yardstick's pulls: answers decoded to lean structs, handed to workers, acknowledged."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Final

import msgspec

from benchmarks.bare.connection import Connection, Reply, binary_head, connect, entry, find_broker
from benchmarks.subject.measure import Drain, Options, tell_result, timed_window

PULL: Final = 11
FOUND: Final = 0
NOT_NOW: Final = (19, 20, 21)
PULL_TIMEOUT: Final = 30.0
QUEUE_LIMIT: Final = 1000  # messages, or four pulls where those are large
WORKERS: Final = 20
YIELD_EVERY: Final = 31  # a mask: workers let the loop turn after 32 messages
MAGIC_V1: Final = 0xDAA320A7

_WORD: Final = Struct(">i").pack
_STORED: Final = Struct(">i I 12x q 56x i").unpack_from  # size, magic, queue offset, body length


class PullFields(msgspec.Struct, rename="camel"):
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


_pull_fields: Final = msgspec.json.Decoder(PullFields, strict=False).decode


def _pulled(reply: Reply) -> PullFields:
    if reply.binary_fields is not None:
        return msgspec.convert(reply.binary_fields, PullFields, strict=False)
    return _pull_fields(reply.raw_fields)


class Pulled(msgspec.Struct, gc=False):
    """A received message: three copies out of the response, the rest decoded on access."""

    queue_offset: int
    topic: str
    body: bytes
    fixed: bytes
    raw_properties: bytes
    queue: Queue
    done: bool = False

    def properties(self) -> dict[str, str]:
        pairs = (pair.partition("\x01") for pair in self.raw_properties.decode().split("\x02"))
        return {name: value for name, _, value in pairs if name}


class Queue:
    """Messages not yet acknowledged, in the order of their offsets."""

    __slots__ = ("held", "number", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[Pulled] = deque()
        self.held = 0

    def put(self, messages: list[Pulled]) -> None:
        self.waiting.extend(messages)
        self.held += len(messages)

    def acknowledge(self, message: Pulled) -> None:
        message.done = True
        self.held -= 1
        waiting = self.waiting
        while waiting and waiting[0].done:
            waiting.popleft()


def decode_messages(body: bytes, queue: Queue) -> list[Pulled]:
    messages: list[Pulled] = []
    at, last, topic = 0, b"", ""
    while at < len(body):
        size, magic, offset, length = _STORED(body, at)
        body_at = at + 88
        topic_at = body_at + length
        if magic == MAGIC_V1:
            name_at = topic_at + 1
            name_end = name_at + body[topic_at]
        else:
            name_at = topic_at + 2
            name_end = name_at + (body[topic_at] << 8 | body[topic_at + 1])
        name = body[name_at:name_end]
        if name != last:
            last, topic = name, name.decode()
        end = at + size
        messages.append(
            Pulled(
                offset,
                topic,
                body[body_at:topic_at],
                body[at:body_at],
                body[name_end + 2 : end],
                queue,
            )
        )
        at = end
    return messages


class Workers:
    """A fixed pool fed through a deque; idle ones wait on Futures."""

    def __init__(self, handle: Callable[[Pulled], Awaitable[None]]) -> None:
        self._handle = handle
        self._ready: deque[Pulled] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()

    def put(self, messages: list[Pulled]) -> None:
        self._ready.extend(messages)
        left, idle = len(messages), self._idle
        while idle and left:
            waiter = idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                left -= 1

    async def work(self) -> None:
        ready, handle, handled = self._ready, self._handle, 0
        loop = asyncio.get_running_loop()
        while True:
            while ready:
                message = ready.popleft()
                try:
                    await handle(message)
                except Exception:  # noqa: BLE001 - the cost of the guard is what counts
                    pass
                else:
                    message.queue.acknowledge(message)
                handled += 1
                if not handled & YIELD_EVERY:
                    await asyncio.sleep(0)
            waiter = loop.create_future()
            self._idle.append(waiter)
            await waiter


class PullRequests:
    """Frames that ask for more of one queue; only offsets change from one to the next."""

    def __init__(self, topic: str, broker: str, queue: int, batch: int) -> None:
        self.batch = batch
        fields = {
            "consumerGroup": f"bare-{time.time_ns()}",
            "topic": topic,
            "queueId": str(queue),
            "maxMsgNums": str(batch),
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
            "bname": broker,
            "sysFlag": "7",
        }
        self._constant = b"".join(entry(name, value) for name, value in fields.items())

    def frame(self, opaque: int, offset: int, commit: int) -> bytes:
        at, committed = b"%d" % offset, b"%d" % commit
        lengths = _WORD(len(at)), _WORD(len(committed))
        fields = b"%b\x00\x0bqueueOffset%b%b\x00\x0ccommitOffset%b%b" % (
            self._constant, lengths[0], at, lengths[1], committed,
        )  # fmt: skip
        return binary_head(PULL, opaque, fields, 0)


async def pull_queue(
    connection: Connection,
    requests: PullRequests,
    queue: Queue,
    deliver: Callable[[list[Pulled]], None],
) -> None:
    """Pull one queue from its beginning, endlessly, within the bound on messages held."""
    offset = commit = 0
    limit = max(QUEUE_LIMIT, 4 * requests.batch)
    while True:
        opaque = connection.next_opaque()
        frame = requests.frame(opaque, offset, commit)
        reply, body = await connection.request(frame, b"", opaque, PULL_TIMEOUT)
        if reply.code != FOUND and reply.code not in NOT_NOW:
            raise RuntimeError(f"pull: code {reply.code}: {reply.remark}")
        offset = _pulled(reply).next_begin_offset
        if reply.code == FOUND:
            messages = decode_messages(body, queue)
            queue.put(messages)
            deliver(messages)
            while queue.held > limit:
                await asyncio.sleep(0)
        commit = queue.waiting[0].queue_offset if queue.waiting else offset


async def pull_messages(options: Options) -> None:
    """Pull all queues at once and look at every body."""

    async def handle(message: Pulled) -> None:
        _ = message.body

    await _consume(options, handle)


async def read_messages(options: Options) -> None:
    """The same, reading tags and properties too."""

    async def handle(message: Pulled) -> None:
        _ = message.body
        properties = message.properties()
        _ = properties["TAGS"], properties.get("KEYS")

    await _consume(options, handle)


async def _consume(options: Options, handle: Callable[[Pulled], Awaitable[None]]) -> None:
    """Measure a window of an endless backlog, or most of one of ``options.total`` messages."""
    address, broker, queues = await find_broker(options.namesrv, options.topic)
    connection = await connect(address)
    drain, finished = (
        Drain(options.total, measured=options.total > 0),
        asyncio.get_running_loop().create_future(),
    )

    workers = Workers(handle)

    def deliver(messages: list[Pulled]) -> None:
        workers.put(messages)
        drain.add(len(messages))
        if drain.count == options.total:
            finished.set_result(None)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(workers.work()) for _ in range(WORKERS)]
        running += [
            tasks.create_task(
                pull_queue(
                    connection,
                    PullRequests(options.topic, broker, number, options.pull_batch),
                    Queue(number),
                    deliver,
                )
            )
            for number in range(queues)
        ]
        if options.total:
            await finished
            tell_result(**drain.figures())
        else:
            await timed_window(lambda: drain.count, options)
        for task in running:
            task.cancel()
    connection.close()
