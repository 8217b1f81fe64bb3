"""Recording of servers, calls and logged errors into a `History`."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Any

from rocketmq_aio.embedded.broker.broker import EmbeddedBroker
from rocketmq_aio.embedded.broker.store import StoredMessage
from rocketmq_aio.model.properties import TAGS, UNIQ_KEY, parse_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import COMPRESSED, RequestCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import decode_batch
from rocketmq_aio.protocol.requests.pull import PullMessage
from rocketmq_aio.protocol.requests.send import SendMessage
from tests.fakes.broker import FakeBroker
from tests.fakes.scripted import NONCE
from tests.fakes.stopwatch import Stopwatch
from tests.history.events import UID, Call, Echo, LogEntry, short_body
from tests.history.history import History

REPLY_SUFFIX = "_REPLY_TOPIC"
SYS_FLAG, SYS_FLAG_AT = Struct(">i"), 36  # in a stored record
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)


def stored_log(topic: str, *brokers: EmbeddedBroker) -> list[LogEntry]:
    """Return the messages of a topic on embedded brokers, without replies: nobody consumes them."""
    if topic.endswith(REPLY_SUFFIX):
        return []
    return [
        LogEntry(
            queue=MessageQueue(topic, broker.name, queue_id),
            offset=stored.offset,
            body=stored_body(stored),
            message_id=stored.properties.get(UNIQ_KEY, stored.message_id),
            uid=stored.properties.get(UID, ""),
            tags=stored.properties.get(TAGS),
        )
        for broker in brokers
        if topic in broker.topics
        for queue_id, log in enumerate(broker.topics[topic].queues)
        for stored in log.messages
    ]


def stored_body(stored: StoredMessage) -> bytes:
    """Return the recorded form of a body that may be compressed, by zlib."""
    (sys_flag,) = SYS_FLAG.unpack_from(stored.record, SYS_FLAG_AT)
    compressed = sys_flag & COMPRESSED
    return short_body(zlib.decompress(stored.body) if compressed else stored.body)


def wire_attempts(*brokers: FakeBroker) -> dict[str, int]:
    """Return how often each message id was written to a broker."""
    attempts: Counter[str] = Counter()
    for broker in brokers:
        for code in SENDS:
            for command in broker.requests_of(code):
                attempts.update(_ids_in(command))
    return dict(attempts)


def request_times(code: int, *brokers: FakeBroker) -> list[float]:
    """Return the arrival times of requests of *code*."""
    frames = (frame for broker in brokers for frame in broker.requests)
    return sorted(frame.at for frame in frames if frame.command.code == code)


def pull_times(*brokers: FakeBroker) -> dict[str, list[float]]:
    """Return the times of pulls by queue, for checks of retry rates."""
    times: dict[str, list[float]] = defaultdict(list)
    for broker in brokers:
        for frame in broker.requests:
            if frame.command.code in PULLS:
                asked = read_header(frame.command, PullMessage)
                times[f"pull of {asked.topic}/{broker.name}/{asked.queue_id}"].append(frame.at)
    return times


def echo(sent: str, reply: Command | None) -> Echo:
    """Return the record of a call with the nonce *sent*."""
    return Echo(sent=sent, received=reply.ext_fields().get(NONCE) if reply is not None else None)


async def record_call(history: History, name: str, seconds: float, call: Awaitable[Any]) -> object:
    """Await *call*, which has a deadline of *seconds*, and record its end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    try:
        return await call
    finally:
        history.calls.append(Call(name=name, deadline=deadline, ended=loop.time()))


@contextmanager
def watch(history: History) -> Iterator[None]:
    """Record logged errors and unretrieved exceptions."""
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    handler = _Listener(history)
    roots = [logging.getLogger("rocketmq_aio"), logging.getLogger("asyncio")]
    for root in roots:
        root.addHandler(handler)
    loop.set_exception_handler(lambda _loop, context: history.unexpected.append(str(context)))
    passed = Stopwatch()
    try:
        with passed:
            yield
    finally:
        history.delayed = passed.delayed
        loop.set_exception_handler(before)
        for root in roots:
            root.removeHandler(handler)


class _Listener(logging.Handler):
    def __init__(self, history: History) -> None:
        super().__init__(logging.ERROR)
        self._history = history

    def emit(self, record: logging.LogRecord) -> None:
        self._history.unexpected.append(f"{record.name}: {record.getMessage()}")


def _ids_in(command: Command) -> list[str]:
    header = read_header(command, SendMessage)
    if header.batch:
        properties = [raw for _, _, raw in decode_batch(command.body)]
    else:
        properties = [(header.properties or "").encode()]
    return [parse_properties(raw).get(UNIQ_KEY, "") for raw in properties]
