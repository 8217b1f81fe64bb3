"""Recording of handlers into a `History`: their calls, and the requests at brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import count
from time import monotonic

from rocketmq_aio.consumer.common.events import (
    ConsumerEvent,
    LeaseLost,
    QueuesAssigned,
    QueuesRevoked,
)
from rocketmq_aio.embedded.recording import WireFrame
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import HeartbeatData, LockBatchRequest, LockBatchResponse
from rocketmq_aio.protocol.codes import RequestCode, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.send import ConsumerSendMsgBack, SendMessage
from tests.fakes.broker import FakeBroker
from tests.fakes.history.events import Commit, Epoch, Handled, History, LockChange, Outcome, Settled
from tests.fakes.history.recording import stored_log, wire_commits

Behaviour = Callable[[MessageExt], Awaitable[object]]

_numbers = count(1)  # of epochs: unique


class HandlerRecorder:
    """Records the assignments and handler calls of one consumer.

    :ivar client: of the consumer, set before it starts
    """

    client: MQClientInstance

    def __init__(self, history: History) -> None:
        self.history = history

    @property
    def consumer(self) -> str:
        """The client id, which `start()` creates."""
        return self.client.client_id

    # --- assignments ----------------------------------------------------------------------------

    def on_event(self, event: ConsumerEvent) -> None:
        """Record the assigned queues of the consumer."""
        if isinstance(event, QueuesAssigned):
            for queue in event.queues:
                self._begin(queue)
        elif isinstance(event, QueuesRevoked):
            for queue in event.queues:
                self._end(queue)
        elif isinstance(event, LeaseLost):
            self._end(event.queue)

    def _begin(self, queue: MessageQueue) -> None:
        self.history.epochs.append(
            Epoch(number=next(_numbers), consumer=self.consumer, queue=queue, started=monotonic())
        )

    def _end(self, queue: MessageQueue) -> None:
        epochs = self.history.epochs
        for at, epoch in enumerate(epochs):
            if epoch.consumer == self.consumer and epoch.queue == queue and epoch.ended is None:
                epochs[at] = replace(epoch, ended=monotonic())

    def _epoch(self, queue: MessageQueue) -> int:
        mine = (e for e in self.history.epochs if e.queue == queue and e.consumer == self.consumer)
        return max((epoch.number for epoch in mine), default=0)

    # --- handlers -------------------------------------------------------------------------------

    def handler(self, behave: Behaviour) -> Behaviour:
        """Return a handler that calls *behave* and records the call."""

        async def handle(message: MessageExt) -> None:
            at = self.begin(message)
            outcome = Outcome.UNKNOWN
            try:
                await behave(message)
                outcome = Outcome.UNKNOWN if _is_late() else Outcome.OK
            except Exception:
                outcome = Outcome.FAIL
                raise
            finally:
                self.end(at, outcome)

        return handle

    def begin(self, message: MessageExt) -> int:
        """Record the start of a handler; return the number to pass to `end`."""
        self.history.handled.append(
            Handled(
                consumer=self.consumer,
                epoch=self._epoch(message.queue),
                queue=message.queue,
                offset=message.queue_offset,
                started=monotonic(),
                tries=message.reconsume_times,
                body=message.body,
            )
        )
        return len(self.history.handled) - 1

    def end(self, at: int, outcome: Outcome) -> None:
        """Record the end of a handler."""
        run = replace(self.history.handled[at], ended=monotonic(), outcome=outcome)
        self.history.handled[at] = run
        if outcome is Outcome.OK:
            assert run.ended is not None
            settled = Settled(at=run.ended, queue=run.queue, offset=run.offset)
            self.history.settled.append(settled)


def _is_late() -> bool:
    """Whether this handler was cancelled by its timeout, and suppressed it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def fill(history: History, group: str, *topics: str, brokers: list[FakeBroker]) -> None:
    """Add the records of brokers for *group*: log, commits, locks, and sent-back messages."""
    for topic in (*topics, RETRY_PREFIX + group):
        history.log += stored_log(topic, *brokers)
    history.commits += owned_commits(group, *brokers)
    history.settled += sent_backs(history, group, *brokers)
    history.locks += lock_changes(group, *brokers)


def owned_commits(group: str, *brokers: FakeBroker) -> list[Commit]:
    """Return the commits of the group with the client ids known from heartbeats."""
    commits = []
    for broker in brokers:
        clients = _clients(broker)
        by = {(frame.at, frame.connection) for frame in broker.requests}
        for commit in wire_commits(group, broker):
            owners = {clients.get(number) for at, number in by if at == commit.at}
            owner = owners.pop() if len(owners) == 1 else None
            commits.append(replace(commit, consumer=owner))
    return commits


def lock_changes(group: str, *brokers: FakeBroker) -> list[LockChange]:
    """Return the locks granted in responses, and the requested unlocks."""
    changes = []
    for broker in brokers:
        for frame, answer in _answered(broker):
            code = frame.command.code
            if code not in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                continue
            asked = read_body(frame.command.body, LockBatchRequest)
            if asked.consumer_group != group:
                continue
            queues, held, at = asked.mq_set, code == RequestCode.LOCK_BATCH_MQ, frame.at
            if held:
                if answer is None or answer.code != ResponseCode.SUCCESS:
                    continue
                queues = read_body(answer.body, LockBatchResponse).locked
            changes += [
                LockChange(at=at, queue=q.queue(), consumer=asked.client_id, held=held)
                for q in queues
            ]
    return changes


def sent_backs(history: History, group: str, *brokers: FakeBroker) -> list[Settled]:
    """Return the times at which brokers stored messages of failed handlers."""
    found = []
    for broker in brokers:
        for frame, answer in _answered(broker):
            if answer is None or answer.code != ResponseCode.SUCCESS:
                continue
            place = _returned(history, group, broker, frame.command)
            if place is not None:
                queue, offset = place
                found.append(Settled(at=frame.at, queue=queue, offset=offset))
    return found


def _returned(
    history: History, group: str, broker: FakeBroker, command: Command
) -> tuple[MessageQueue, int] | None:
    """Return the message that *command* sends back."""
    if command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
        asked = read_header(command, ConsumerSendMsgBack)
        return _place(broker, asked.offset) if asked.group == group else None
    if command.code != RequestCode.SEND_MESSAGE_V2:
        return None
    sent = read_header(command, SendMessage)
    if sent.topic != RETRY_PREFIX + group:
        return None
    tries = (sent.reconsume_times or 0) - 1
    for run in reversed(history.handled):
        if run.body == command.body and run.tries == tries:
            return run.queue, run.offset
    return None


def _place(broker: FakeBroker, log_offset: int) -> tuple[MessageQueue, int]:
    return next(
        (MessageQueue(name, broker.name, number), stored.offset)
        for name, topic in broker.topics.items()
        for number, log in enumerate(topic.queues)
        for stored in log.messages
        if stored.log_offset == log_offset
    )


def _answered(broker: FakeBroker) -> Iterator[tuple[WireFrame, Command | None]]:
    """Yield each request with its response."""
    said = (frame for frame in broker.wire if frame.sent and frame.command.is_response)
    answers = {(frame.connection, frame.command.opaque): frame.command for frame in said}
    for frame in broker.requests:
        yield frame, answers.get((frame.connection, frame.command.opaque))


def _clients(broker: FakeBroker) -> dict[int, str]:
    """Return the client ids of connections."""
    return {
        frame.connection: read_body(frame.command.body, HeartbeatData).client_id
        for frame in broker.requests
        if frame.command.code == RequestCode.HEART_BEAT
    }
