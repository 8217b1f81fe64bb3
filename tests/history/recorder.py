"""Recorder: clients that record what the application asks for, what it gets, and their requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from copy import copy
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec

from rocketmq_aio.consumer.push.handlers import BatchContext
from rocketmq_aio.errors import (
    BrokerError,
    ConfigError,
    InvalidMessageError,
    NameServerUnavailableError,
    NotConnectedError,
    RouteNotFoundError,
    SendError,
    SendUnknownError,
)
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import TIMER_DELAY_MS
from rocketmq_aio.model.values import MessageQueue, SendResult
from tests.history import events
from tests.history.clients import (
    RecordedLitePullConsumer,
    RecordedPopConsumer,
    RecordedProducer,
    RecordedPullConsumer,
    RecordedPushConsumer,
    RecordedTransactionProducer,
    recorded_batch_handler,
    recorded_check,
    recorded_handler,
)
from tests.history.events import UID, Event, Outcome, short_body
from tests.history.history import SUFFIX, History
from tests.history.requests import record_requests

# Errors that guarantee that nothing was stored; SendUnknownError does not.
SURELY_NOT = (
    BrokerError,
    ConfigError,
    InvalidMessageError,
    NameServerUnavailableError,
    NotConnectedError,
    RouteNotFoundError,
    SendError,
)
C = TypeVar("C", bound=ClientBase)


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome of a send that raised *error*."""
    if error is None:
        return Outcome.OK
    if isinstance(error, SURELY_NOT) and not isinstance(error, SendUnknownError):
        return Outcome.FAIL
    return Outcome.UNKNOWN


class Recorder:
    """Records the clients of one process that it makes.

    Without *folder* the events are in `history` at once; else they are written to a file there, one
    system call each, so that none is lost when the process is killed.

    :param folder: of all processes of the run
    :param process: a name, unique in the run
    """

    def __init__(self, folder: Path | None = None, process: str = "main") -> None:
        self.process = process
        self.history = History()
        self._numbers = count(1)
        self._encode = msgspec.json.Encoder().encode
        self._file = -1
        self.in_flight: dict[str, str] = {}  # numbers of sends by uid
        self._uids: dict[str, str] = {}  # the reverse
        self._watched: set[int] = set()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(folder / f"{process}{SUFFIX}", flags, 0o600)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def add(self, event: Event) -> None:
        """Record *event*."""
        if self._file >= 0:
            os.write(self._file, self._encode(event) + b"\n")
        else:
            self.history.add(event)

    def number(self) -> str:
        """Return a number that no other event of the run has."""
        return f"{self.process}-{next(self._numbers)}"

    # --- clients ----------------------------------------------------------------------------------

    def producer(self, group: str, **arguments: Any) -> RecordedProducer:  # noqa: ANN401
        """Return a recorded `Producer`; arguments as for the class."""
        return self._watch(RecordedProducer(self, group, **arguments))

    def transaction_producer(
        self,
        group: str,
        *,
        check: Callable[[MessageExt], Any],
        **arguments: Any,  # noqa: ANN401
    ) -> RecordedTransactionProducer:
        """Return a recorded `TransactionProducer`; arguments as for the class."""
        checked = recorded_check(self, check)
        return self._watch(RecordedTransactionProducer(self, group, check=checked, **arguments))

    def push_consumer(
        self,
        group: str,
        *,
        on_message: Callable[[MessageExt], Any] | None = None,
        on_batch: Callable[[list[MessageExt], BatchContext], Any] | None = None,
        **arguments: Any,  # noqa: ANN401
    ) -> RecordedPushConsumer:
        """Return a recorded `PushConsumer`; arguments as for the class."""
        made: list[RecordedPushConsumer] = []  # the handlers run after it was made
        if on_message is not None:
            arguments["on_message"] = recorded_handler(made, on_message)
        if on_batch is not None:
            arguments["on_batch"] = recorded_batch_handler(made, on_batch)
        consumer = RecordedPushConsumer(self, group, **arguments)
        made.append(consumer)
        return self._watch(consumer)

    def lite_pull_consumer(self, group: str, **arguments: Any) -> RecordedLitePullConsumer:  # noqa: ANN401
        """Return a recorded `LitePullConsumer`; arguments as for the class."""
        return self._watch(RecordedLitePullConsumer(self, group, **arguments))

    def pull_consumer(self, group: str, **arguments: Any) -> RecordedPullConsumer:  # noqa: ANN401
        """Return a recorded `PullConsumer`; arguments as for the class."""
        return self._watch(RecordedPullConsumer(self, group, **arguments))

    def pop_consumer(self, group: str, **arguments: Any) -> RecordedPopConsumer:  # noqa: ANN401
        """Return a recorded `PopConsumer`; arguments as for the class."""
        return self._watch(RecordedPopConsumer(self, group, **arguments))

    def _watch(self, client: C) -> C:
        if id(client.client) not in self._watched:
            self._watched.add(id(client.client))
            record_requests(client.client, self)
        return client

    # --- facts that no client knows ---------------------------------------------------------------

    def stored(self, entries: Iterable[events.LogEntry]) -> None:
        """Record messages of the log, read after the run."""
        for entry in entries:
            self.add(entry)

    def subscribed(self, group: str, topic: str, expression: str | None = "*") -> None:
        """Record what a group reads; recorded consumers do that themselves."""
        self.add(events.Subscribed(group=group, topic=topic, expression=expression))

    def reset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Record that the offset of a group was reset; call it before the reset."""
        self.add(events.Reset(at=monotonic(), group=group, queue=queue, offset=offset))

    def fault(self, kind: str, target: str, started: float, healed: float | None = None) -> None:
        """Record a fault, after it was healed: "kill", "stall", "cut", "broker" ...

        :param target: the process, consumer or broker that it hit
        """
        end = monotonic() if healed is None else healed
        self.add(events.Fault(started=started, healed=end, kind=kind, target=target))

    def drained(self) -> None:
        """Record that all groups have consumed everything."""
        self.add(events.Drained(at=monotonic()))

    # --- sends ------------------------------------------------------------------------------------

    def send_started(
        self,
        message: Message,
        producer: str,
        *,
        key: str | None = None,
        batch: str = "",
        transaction: bool = False,
        alone: bool = True,
    ) -> tuple[Message, str]:
        """Record a send; return the message with the property `UID`, and the number of the send.

        :param producer: its client id
        :param alone: the task awaits it before its next send
        """
        number = self.number()
        uid = message.properties.get(UID)
        if uid is None:
            uid, message = number, copy(message)
            message.properties = {**message.properties, UID: uid}
            message.encoded_properties += f"{UID}\x01{uid}\x02"
        task = asyncio.current_task()
        self.in_flight[uid], self._uids[number] = number, uid
        self.add(
            events.Sent(
                number=number,
                uid=uid,
                body=short_body(message.body),
                started=monotonic(),
                topic=message.topic,
                producer=producer,
                batch=batch,
                ordering_key=key or message.sharding_key,
                task=f"{self.process}/{task.get_name()}" if task is not None and alone else None,
                transaction=transaction,
                delayed=message.delayed,
                delay_seconds=int(message.properties.get(TIMER_DELAY_MS, 0)) / 1000,
            )
        )
        return message, number

    def send_ended(
        self,
        number: str,
        result: SendResult | None,
        error: BaseException | None = None,
        *,
        replied: bool = False,
    ) -> None:
        """Record the end of a send; without a result, error or reply its outcome is unknown."""
        uid = self._uids.pop(number)
        if self.in_flight.get(uid) == number:
            del self.in_flight[uid]
        self.add(
            events.SendEnded(
                at=monotonic(),
                number=number,
                outcome=outcome_of(error) if result or error or replied else Outcome.UNKNOWN,
                queue=result.queue if result else None,
                offset=result.queue_offset if result else None,
                message_id=result.message_id if result else None,
                error="" if error is None else repr(error)[:200],
            )
        )
