"""Environment of a conformance case, and common steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.properties import encode_properties
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import PULL_SUBSCRIPTION, PULL_SUSPEND
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.record import decode_messages
from rocketmq_aio.protocol.requests.pull import PullMessage, PullMessageResponse
from rocketmq_aio.protocol.requests.send import SendMessage, SendMessageResponse
from tests.fakes.raw_client import RawClient

QUEUES: Final = 4  # of the topic of a case
HOLD_MILLIS: Final = 8_000
QUIET_SECONDS: Final = 0.4  # wait for frames that must not arrive


class CaseEnv(NamedTuple):
    """A name server, a broker, and the topic and group of one case."""

    namesrv: str
    broker: str
    version: str
    topic: str
    group: str

    @property
    def is_5(self) -> bool:
        return self.version.startswith("5.")

    def client(self) -> RawClient:
        """Return a client of the broker."""
        return RawClient(self.broker)

    def queue(self, queue_id: int = 0) -> MessageQueue:
        return MessageQueue(self.topic, "", queue_id)


Case = Callable[[CaseEnv], Awaitable[None]]


def send_header(env: CaseEnv, queue_id: int = 0, **changes: object) -> SendMessage:
    """Return the header of a send, with *changes*."""
    fields: dict[str, object] = {
        "producer_group": "conformance",
        "topic": env.topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": QUEUES,
        "queue_id": queue_id,
        "sys_flag": 0,
        "born_timestamp": time.time_ns() // 1_000_000,
        "flag": 0,
        "properties": encode_properties({"WAIT": "true"}),
        "batch": False,
    }
    return SendMessage(**fields | changes)  # type: ignore[arg-type]


def pull_header(env: CaseEnv, offset: int, **changes: object) -> PullMessage:
    """Return the header of a pull with long polling, with *changes*."""
    fields: dict[str, object] = {
        "consumer_group": env.group,
        "topic": env.topic,
        "queue_id": 0,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": PULL_SUSPEND | PULL_SUBSCRIPTION,
        "commit_offset": 0,
        "suspend_timeout_millis": HOLD_MILLIS,
        "subscription": "*",
        "sub_version": 0,
        "expression_type": "TAG",
    }
    return PullMessage(**fields | changes)  # type: ignore[arg-type]


async def send(client: RawClient, env: CaseEnv, body: bytes, tag: str = "") -> int:
    """Store a message in queue 0; return its offset."""
    properties = encode_properties({"TAGS": tag} if tag else {"WAIT": "true"})
    answer = await client.ask(send_header(env, properties=properties), body)
    assert answer.code == 0, answer
    return read_header(answer, SendMessageResponse).queue_offset


async def pull(client: RawClient, header: PullMessage) -> tuple[Command, PullMessageResponse]:
    """Return the response to a pull, of code 0, 19, 20 or 21, and its fields."""
    answer = await client.ask(header)
    return answer, read_header(answer, PullMessageResponse)


def messages_in(answer: Command, env: CaseEnv) -> list[MessageExt]:
    messages, fault = decode_messages(answer.body, env.queue())
    assert fault is None
    return messages


async def everything(client: RawClient, env: CaseEnv, count: int) -> list[MessageExt]:
    """Return *count* messages of queue 0; brokers may return fewer per pull, and later."""
    found: list[MessageExt] = []
    while len(found) < count:
        answer, _ = await pull(client, pull_header(env, len(found)))
        assert answer.code == 0, answer
        found += messages_in(answer, env)
    return found


async def is_unanswered(client: RawClient, opaque: int) -> bool:
    """Return whether no response arrives within `QUIET_SECONDS`."""
    try:
        await client.answer(opaque, QUIET_SECONDS)
    except TimeoutError:
        return True
    return False


async def eventually(holds: Callable[[], Awaitable[bool]], seconds: float = 5.0) -> bool:
    """Return whether *holds* becomes true: brokers do some work after their response."""
    deadline = time.monotonic() + seconds
    while not await holds():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True
