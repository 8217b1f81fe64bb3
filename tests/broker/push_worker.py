"""Push consumer process that a test can stop, kill and freeze.

python -m tests.broker.push_worker FILE ORDERS

Appends a JSON line per event to FILE. The lines survive kill -9, and
their times are from one clock for all processes of the machine. SIGTERM stops it gracefully.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Final
from unittest.mock import patch

import msgspec

from rocketmq_aio import ClientConfig, LeaseLost, MessageExt, PushConfig, PushConsumer
from rocketmq_aio.consumer.common.events import ConsumerEvent, QueuesAssigned, QueuesRevoked
from rocketmq_aio.consumer.offsets import commit_fence
from rocketmq_aio.consumer.offsets.commit_fence import StallRecovery
from rocketmq_aio.consumer.push import push_engine
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue
from rocketmq_aio.consumer.push.locks import LEASE_SECONDS, RENEW_SECONDS, LockOwner, QueueLocks
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import RequestCode

SLOW_EVERY: Final = 40
READY_SECONDS: Final = 60.0
ELSEWHERE: Final = -1  # the queue id recorded for messages of the retry topic


class Orders(msgspec.Struct, kw_only=True):
    """Settings of a worker.

    *lease_seconds* is how long it may stall and keep its queues. *slow_seconds* is how long
    its handler takes for every `SLOW_EVERY`th message of a queue, *handler_seconds* for the others.
    """

    namesrv: str
    group: str
    topic: str
    orderly: bool = False
    handler_seconds: float = 0.02
    slow_seconds: float = 0.0
    lease_seconds: float = LEASE_SECONDS
    settings: dict[str, Any] = {}
    client: dict[str, Any] = {}


class Diary:
    """Records events; each line is (event, time, ...)."""

    def __init__(self, path: str, topic: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._topic = topic

    def say(self, what: str, *rest: object) -> None:
        os.write(self._file, msgspec.json.encode([what, monotonic(), *rest]) + b"\n")

    def on_event(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueuesAssigned | QueuesRevoked):
            self.say(type(event).__name__, self._ids(event.queues))
        elif isinstance(event, LeaseLost):
            self.say("LeaseLost", self._ids([event.queue]))

    def message(self, what: str, message: MessageExt) -> None:
        number = message.queue.queue_id if message.queue.topic == self._topic else ELSEWHERE
        self.say(what, number, message.queue_offset, message.body.decode())

    def _ids(self, queues: Iterable[MessageQueue]) -> list[int]:
        return [queue.queue_id for queue in queues if queue.topic == self._topic]

    # --- an RPC hook: commits as they are sent --------------------------------------------------

    def before_request(
        self, address: str, code: int, ext_fields: MutableMapping[str, str], body: bytes
    ) -> None:
        if code == RequestCode.UPDATE_CONSUMER_OFFSET and ext_fields["topic"] == self._topic:
            self.say("commit", int(ext_fields["queueId"]), int(ext_fields["commitOffset"]))

    def after_response(
        self, address: str, code: int, response_code: int, ext_fields: Mapping[str, str]
    ) -> None:
        """Responses are not recorded."""


class ShortLocks(QueueLocks):
    """Queue locks with a shorter lease, renewed at the same fraction of it."""

    def __init__(
        self, lease: float, instance: MQClientInstance, group: str, owner: LockOwner
    ) -> None:
        super().__init__(instance, group, owner, lease_seconds=lease)
        self._interval = lease * RENEW_SECONDS / LEASE_SECONDS

    async def keep_renewing(self, interval_seconds: float = RENEW_SECONDS) -> None:
        await super().keep_renewing(self._interval)


class RecordedStalls(StallRecovery[DispatchQueue]):
    """Stall recovery that records when it detects a stall."""

    diary: ClassVar[Diary]

    def _on_stall(self, held: list[DispatchQueue]) -> None:
        self.diary.say("stalled")
        super()._on_stall(held)


async def work(orders: Orders, diary: Diary) -> None:
    """Consume until SIGTERM; record when queues are assigned."""

    async def handle(message: MessageExt) -> None:
        diary.message("start", message)
        is_slow = orders.slow_seconds and message.queue_offset % SLOW_EVERY == 0
        await asyncio.sleep(orders.slow_seconds if is_slow else orders.handler_seconds)
        diary.message("end", message)

    client = ClientConfig(namesrv=orders.namesrv, rpc_hooks=(diary,), **orders.client)
    settings = {"start_from": "earliest", "commit_interval_seconds": 0.5, **orders.settings}
    consumer = PushConsumer(
        orders.group,
        on_message=handle,
        orderly=orders.orderly,
        client=client,
        config=PushConfig(**settings),
        on_event=diary.on_event,
    )
    await consumer.subscribe(orders.topic)
    diary.say("joining")
    await consumer.start()
    running = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)  # signals are handled from here on
    await consumer.ready(READY_SECONDS)
    diary.say("ready")
    await running


def main(path: str, text: str) -> None:
    orders = msgspec.json.decode(text, type=Orders)
    lease = orders.lease_seconds
    with (
        patch.object(push_engine, "QueueLocks", partial(ShortLocks, lease)),
        patch.object(push_engine, "StallRecovery", RecordedStalls),
        patch.object(commit_fence, "STALL_SECONDS", lease),
        patch.object(
            commit_fence, "SHORT_STALL_SECONDS", min(commit_fence.SHORT_STALL_SECONDS, lease)
        ),
    ):
        RecordedStalls.diary = Diary(path, orders.topic)
        asyncio.run(work(orders, RecordedStalls.diary))


if __name__ == "__main__":
    main(*sys.argv[1:])
