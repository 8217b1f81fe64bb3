"""Recorded clients: the public classes, which record what the application does and gets."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager, suppress
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rocketmq_aio.config.producer import MAX_BATCH_MESSAGES
from rocketmq_aio.config.validation import is_async
from rocketmq_aio.consumer.common.events import (
    ConsumerEvent,
    LeaseLost,
    LeaseRegained,
    MessageDeadLettered,
    OffsetCorrected,
    QueuesAssigned,
    QueuesRevoked,
)
from rocketmq_aio.consumer.lite_pull.consumer import LitePullConsumer
from rocketmq_aio.consumer.pop.consumer import MessageLoop, PopConsumer
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pull.consumer import PullConsumer
from rocketmq_aio.consumer.pull.result import PullResult, PullStatus
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.push.handlers import BatchContext, RetryRequest
from rocketmq_aio.errors import BatchError, NotRunningError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import WAIT
from rocketmq_aio.model.values import MessageModel, MessageQueue, SendResult, TransactionState
from rocketmq_aio.producer.producer import Producer
from rocketmq_aio.producer.transaction.producer import TransactionProducer
from rocketmq_aio.producer.transaction.transaction import Transaction, TransactionResult
from tests.history import events
from tests.history.events import UID, Outcome, short_body
from tests.history.requests import stored_queue

if TYPE_CHECKING:
    from tests.history.recorder import Recorder

ADDED_BYTES = 256  # to a message in a batch, at most: its ids
CONTIGUOUS = (PullStatus.FOUND, PullStatus.NO_NEW)  # the next offset follows what was returned

# --- producers ------------------------------------------------------------------------------------


class RecordedProducer(Producer):
    """Records all kinds of sends, requests and recalls."""

    def __init__(self, recorder: Recorder, group: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(group, **arguments)
        self._recorder = recorder
        self._uids: dict[str, str] = {}  # of delayed messages, by the handle of their recall

    async def send(self, message: Message, **options: Any) -> SendResult:  # noqa: ANN401
        key = options.get("sharding_key")
        message, number = self._recorder.send_started(message, self.client.client_id, key=key)
        sending = super().send(message, **options)
        result: SendResult = await _recorded_send(self._recorder, number, sending)
        if result.recall_handle is not None:
            self._uids[result.recall_handle] = message.properties[UID]
        return result

    async def recall(self, topic: str, handle: str | None) -> str:
        number, uid = self._recorder.number(), self._uids.pop(handle or "", "")
        self._recorder.add(events.Recalled(at=monotonic(), number=number, uid=uid))
        message_id = await super().recall(topic, handle)
        self._recorder.add(events.Confirmed(at=monotonic(), number=number))
        return message_id

    async def request(self, message: Message, *arguments: Any, **options: Any) -> MessageExt:  # noqa: ANN401
        """Record a request; a reply has to have the body of its request."""
        key = options.get("sharding_key")
        message, number = self._recorder.send_started(message, self.client.client_id, key=key)
        try:
            reply = await super().request(message, *arguments, **options)
        except BaseException as error:
            self._recorder.send_ended(number, None, error)
            raise
        self._recorder.send_ended(number, None, replied=True)
        sent, received = short_body(message.body), short_body(reply.body)
        self._recorder.add(events.Echo(sent=sent.decode(), received=received.decode()))
        return reply

    def send_nowait(self, message: Message, **options: Any) -> asyncio.Future[SendResult]:  # noqa: ANN401
        message, number = self._recorder.send_started(message, self.client.client_id, alone=False)
        try:
            future = super().send_nowait(message, **options)
        except BaseException as error:
            self._recorder.send_ended(number, None, error)
            raise
        future.add_done_callback(lambda done: _note_done(self._recorder, number, done))
        return future

    async def send_oneway(self, message: Message, **options: Any) -> None:  # noqa: ANN401
        message, number = self._recorder.send_started(message, self.client.client_id, alone=False)
        await _recorded_send(self._recorder, number, super().send_oneway(message, **options))

    async def send_batch(self, messages: Iterable[Message], **options: Any) -> list[SendResult]:  # noqa: ANN401
        given = list(messages)
        batch = self._recorder.number() if self._is_one_request(given) else ""
        client_id = self.client.client_id
        started = [self._recorder.send_started(each, client_id, batch=batch) for each in given]
        outcomes: list[Any] = [None] * len(started)
        try:
            outcomes = list(await super().send_batch([each for each, _ in started], **options))
            return outcomes
        except BatchError as error:
            outcomes = list(error.outcomes)
            raise
        except Exception as error:
            outcomes = [error] * len(started)
            raise
        finally:
            for (_, number), outcome in zip(started, outcomes, strict=True):
                failed = isinstance(outcome, BaseException)
                self._recorder.send_ended(
                    number, None if failed else outcome, outcome if failed else None
                )

    def _is_one_request(self, messages: list[Message]) -> bool:
        size = sum(len(m.body) + len(m.encoded_properties) + ADDED_BYTES for m in messages)
        kinds = {(message.topic, message.properties.get(WAIT)) for message in messages}
        is_short = len(messages) <= MAX_BATCH_MESSAGES
        return len(kinds) == 1 and is_short and size <= self._config.max_message_bytes


async def _recorded_send(recorder: Recorder, number: str, sending: Awaitable[Any]) -> Any:  # noqa: ANN401
    try:
        result = await sending
    except BaseException as error:
        recorder.send_ended(number, None, error)
        raise
    recorder.send_ended(number, result)
    return result


def _note_done(recorder: Recorder, number: str, future: asyncio.Future[SendResult]) -> None:
    if future.cancelled():
        recorder.send_ended(number, None)
    elif (error := future.exception()) is not None:
        recorder.send_ended(number, None, error)
    else:
        recorder.send_ended(number, future.result())


class RecordedTransaction(Transaction):
    """Records its half message and the decision of the application.

    The block is the local transaction, unless a function is.
    """

    _recorder: Recorder
    _producer: str
    _uid = ""
    _has_function = False

    async def __aenter__(self) -> Self:
        self.message, number = self._recorder.send_started(
            self.message, self._producer, transaction=True
        )
        self._uid = self.message.properties[UID]

        async def enter() -> SendResult:
            await super(RecordedTransaction, self).__aenter__()
            return self.sent

        await _recorded_send(self._recorder, number, enter())
        if not self._has_function:
            self.local_part_started()
        return self

    def local_part_started(self) -> None:
        """Record that the local transaction begins."""
        self._recorder.add(events.LocalPart(at=monotonic(), uid=self._uid))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.is_decided:
            self._decide(TransactionState.COMMIT if kind is None else TransactionState.ROLLBACK)
        await super().__aexit__(kind, error, traceback)

    async def commit(self) -> TransactionResult:
        self._decide(TransactionState.COMMIT)
        return await super().commit()

    async def rollback(self) -> TransactionResult:
        self._decide(TransactionState.ROLLBACK)
        return await super().rollback()

    async def decide(self, state: object) -> None:
        if not self.is_decided:
            self._decide(state)
        await super().decide(state)

    def unknown(self) -> None:
        self._decide(TransactionState.UNKNOWN)
        super().unknown()

    def _decide(self, state: object) -> None:
        name = state_name(state)
        self._recorder.add(events.Decided(at=monotonic(), uid=self._uid, state=name))


class RecordedTransactionProducer(RecordedProducer, TransactionProducer):
    """Records transactions and what the check function returns."""

    def __init__(self, recorder: Recorder, group: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(recorder, group, **arguments)
        self._with_function: set[int] = set()  # ids of messages whose local part is a function

    def transaction(self, message: Message, **options: Any) -> Transaction:  # noqa: ANN401
        recorded = RecordedTransaction.__new__(RecordedTransaction)
        vars(recorded).update(vars(super().transaction(message, **options)))
        recorded._recorder, recorded._producer = self._recorder, self.client.client_id
        recorded._has_function = id(message) in self._with_function
        return recorded

    async def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Transaction], Any],
        **options: Any,  # noqa: ANN401
    ) -> TransactionResult:
        def run(transaction: Transaction) -> Any:  # noqa: ANN401
            assert isinstance(transaction, RecordedTransaction)
            transaction.local_part_started()
            return execute(transaction)

        async def run_async(transaction: Transaction) -> Any:  # noqa: ANN401
            return await run(transaction)

        self._with_function.add(id(message))
        try:
            function = run_async if is_async(execute) else run
            return await super().send_in_transaction(message, function, **options)
        finally:
            self._with_function.discard(id(message))


def recorded_check(
    recorder: Recorder, check: Callable[[MessageExt], Any]
) -> Callable[[MessageExt], Any]:
    """Return *check*, recorded."""

    def note(message: MessageExt, state: object) -> object:
        uid, name = message.properties.get(UID, ""), state_name(state)
        recorder.add(events.Decided(at=monotonic(), uid=uid, state=name, checked=True))
        return state

    async def checked(message: MessageExt) -> object:
        return note(message, await check(message))

    return checked if is_async(check) else lambda message: note(message, check(message))


def state_name(state: object) -> str:
    """Return "commit", "rollback" or "unknown"."""
    names = {TransactionState.COMMIT: "commit", TransactionState.ROLLBACK: "rollback"}
    return names.get(state, "unknown") if isinstance(state, TransactionState) else "unknown"


# --- consumers ------------------------------------------------------------------------------------


class RecordedConsumer:
    """Mixin of recorded consumers: their assignments and deliveries."""

    kind = ""
    _recorder: Recorder
    _group: str

    @property
    def consumer_id(self) -> str:
        """The client id, which `start()` creates."""
        this: Any = self  # a client
        client_id: str = this.client.client_id
        return client_id

    async def start(self) -> None:
        await super().start()  # type: ignore[misc]
        config = getattr(getattr(self, "_engine", None), "config", None)
        model = getattr(config, "message_model", MessageModel.CLUSTERING)
        self._recorder.add(
            events.Joined(
                at=monotonic(),
                consumer=self.consumer_id,
                group=self._group,
                process=self._recorder.process,
                kind=self.kind,
                orderly=getattr(self, "orderly", False),
                broadcast=model is MessageModel.BROADCASTING,
                store=getattr(getattr(config, "offset_store", None), "name", ""),
            )
        )

    async def close(self) -> None:
        await super().close()  # type: ignore[misc]
        releasing: asyncio.Task[None] | None = self._releasing  # type: ignore[attr-defined]
        if releasing is not None and not releasing.done():
            return  # called by a handler, whose end the close waits for
        with suppress(NotRunningError):  # it was never started
            left = events.Left(at=monotonic(), consumer=self.consumer_id, group=self._group)
            self._recorder.add(left)

    async def subscribe(self, topic: str, selector: Any = "*", **options: Any) -> None:  # noqa: ANN401
        self._recorder.subscribed(
            self._group, topic, selector if isinstance(selector, str) else None
        )
        await super().subscribe(topic, selector, **options)  # type: ignore[misc]

    def record_events(self) -> None:
        """Record assignments from now on."""
        streams: Any = self._engine.events  # type: ignore[attr-defined]
        listener = streams._listener

        def listen(event: ConsumerEvent) -> None:
            self._note(event)
            if listener is not None:
                listener(event)

        streams._listener = listen

    def _note(self, event: ConsumerEvent) -> None:
        if isinstance(event, QueuesAssigned | LeaseRegained):
            for queue in event.queues if isinstance(event, QueuesAssigned) else [event.queue]:
                self._recorder.add(events.Assigned(at=monotonic(), **self._of(queue)))
        elif isinstance(event, QueuesRevoked):
            for queue in event.queues:
                self._recorder.add(events.Revoked(at=monotonic(), **self._of(queue)))
        elif isinstance(event, LeaseLost):
            lost = events.Revoked(at=monotonic(), lost_lock=True, **self._of(event.queue))
            self._recorder.add(lost)
        elif isinstance(event, OffsetCorrected):
            self.moved(event.queue, event.corrected)
        elif isinstance(event, MessageDeadLettered):
            dead = events.DeadLettered(at=monotonic(), offset=event.offset, **self._of(event.queue))
            self._recorder.add(dead)

    def moved(self, queue: MessageQueue, offset: int) -> None:
        """Record that this consumer goes on at *offset*."""
        self._recorder.add(events.Reset(at=monotonic(), offset=offset, **self._of(queue)))

    def delivered(self, messages: Iterable[MessageExt], poll: int = 0) -> None:
        """Record messages that were returned to the application."""
        now = monotonic()
        for message in messages:
            self._recorder.add(events.Delivered(at=now, poll=poll, **self.facts(message)))

    def facts(self, message: MessageExt) -> dict[str, Any]:
        """Return the fields of an event about *message*."""
        queue, offset, until = message.queue, message.queue_offset, None
        if isinstance(message, PoppedMessage):
            receipt, until = message.receipt, message.deadline
            queue, offset = self.place(message), receipt.offset
        return {
            **self._of(queue),
            "offset": offset,
            "uid": message.properties.get(UID, ""),
            "body": short_body(message.body),
            "tries": message.reconsume_times,
            "log_offset": message.commit_log_offset,
            "until": until,
        }

    def place(self, message: PoppedMessage) -> MessageQueue:
        """Return the queue in which a popped message is stored."""
        receipt = message.receipt
        return stored_queue(
            self._group, message.topic, receipt.broker_name, receipt.queue_id, receipt.marker
        )

    def _of(self, queue: MessageQueue) -> dict[str, Any]:
        return {"queue": queue, "group": self._group, "consumer": self.consumer_id}


class RecordedPushConsumer(RecordedConsumer, PushConsumer):
    """Records handlers, assignments and seeks."""

    kind = "push"

    def __init__(self, recorder: Recorder, group: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(group, **arguments)
        self._recorder = recorder
        self.orderly = arguments.get("orderly", False)
        self.record_events()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        self.moved(queue, offset)
        await super().seek(queue, offset)

    def handler_started(self, messages: Iterable[MessageExt]) -> list[str]:
        """Record the start of a handler; return a number for each message."""
        now, call, numbers = monotonic(), self._recorder.number(), []
        for message in messages:
            numbers.append(number := self._recorder.number())
            facts = self.facts(message)
            self._recorder.add(events.Handled(started=now, number=number, call=call, **facts))
        return numbers

    def handler_ended(self, numbers: Iterable[str], outcomes: Iterable[Outcome]) -> None:
        """Record the end of a handler."""
        now = monotonic()
        for number, outcome in zip(numbers, outcomes, strict=True):
            self._recorder.add(events.HandlerEnded(at=now, number=number, outcome=outcome))

    @contextmanager
    def handling(
        self, messages: list[MessageExt], context: BatchContext | None = None
    ) -> Iterator[list[object]]:
        """Record a handler; it appends its result to the list."""
        numbers = self.handler_started(messages)
        returned: list[object] = []
        outcomes = [Outcome.UNKNOWN] * len(messages)
        try:
            yield returned
            if not _is_late():
                outcomes = _outcomes(len(messages), returned[-1], context)
        except Exception:
            outcomes = [Outcome.FAIL] * len(messages)
            raise
        finally:
            self.handler_ended(numbers, outcomes)


def _is_late() -> bool:
    """Whether this handler was cancelled by its timeout, and suppressed it."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # in a thread: the history cannot tell
        return False
    return task is not None and task.cancelling() > 0


def _outcomes(size: int, result: object, context: BatchContext | None) -> list[Outcome]:
    if isinstance(result, RetryRequest):
        return [Outcome.FAIL] * size
    if context is None:
        return [Outcome.OK] * size
    done = context.done(size)
    return [Outcome.OK] * done + [Outcome.FAIL] * (size - done)


def recorded_handler(
    made: list[RecordedPushConsumer], behave: Callable[[MessageExt], Any]
) -> Callable[[MessageExt], Any]:
    """Return `on_message` of the consumer in *made*: *behave*, recorded."""

    async def handle(message: MessageExt) -> object:
        with made[0].handling([message]) as returned:
            returned.append(await behave(message))
            return returned[-1]

    def handle_in_thread(message: MessageExt) -> object:
        with made[0].handling([message]) as returned:
            returned.append(behave(message))
            return returned[-1]

    return handle if is_async(behave) else handle_in_thread


def recorded_batch_handler(
    made: list[RecordedPushConsumer], behave: Callable[[list[MessageExt], BatchContext], Any]
) -> Callable[[list[MessageExt], BatchContext], Any]:
    """Return `on_batch` of the consumer in *made*: *behave*, recorded."""

    async def handle(messages: list[MessageExt], context: BatchContext) -> object:
        with made[0].handling(messages, context) as returned:
            returned.append(await behave(messages, context))
            return returned[-1]

    def handle_in_thread(messages: list[MessageExt], context: BatchContext) -> object:
        with made[0].handling(messages, context) as returned:
            returned.append(behave(messages, context))
            return returned[-1]

    return handle if is_async(behave) else handle_in_thread


class RecordedLitePullConsumer(RecordedConsumer, LitePullConsumer):
    """Records polls, iterations, commits and seeks."""

    kind = "lite"

    def __init__(self, recorder: Recorder, group: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(group, **arguments)
        self._recorder = recorder
        self._polls = 0
        self.record_events()

    async def poll(
        self, timeout_seconds: float = 5.0, max_messages: int | None = None
    ) -> list[MessageExt]:
        self._polls += 1
        poll = self._polls
        self._recorder.add(
            events.Poll(
                number=poll, consumer=self.consumer_id, started=monotonic(), group=self._group
            )
        )
        messages = await super().poll(timeout_seconds, max_messages)
        self.delivered(messages, poll)
        return messages

    async def __anext__(self) -> MessageExt:
        self.processed()
        message = await super().__anext__()
        self.delivered([message])
        return message

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None = None
    ) -> None:
        if offsets is None:
            self.processed()
        elif isinstance(offsets, Mapping):
            for queue, offset in offsets.items():
                self.processed(queue, offset)
        else:
            for queue in offsets:
                self.processed(queue)
        await super().commit(offsets)

    def processed(self, queue: MessageQueue | None = None, offset: int | None = None) -> None:
        """Record that the application has processed what it got."""
        self._recorder.add(
            events.Processed(
                at=monotonic(),
                consumer=self.consumer_id,
                group=self._group,
                queue=queue,
                offset=offset,
            )
        )

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        paused = list(queues)
        super().pause(paused)
        self._paused(paused, paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        resumed = list(queues)
        super().resume(resumed)
        self._paused(resumed, paused=False)

    def _paused(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        for queue in queues:
            self._recorder.add(events.Paused(at=monotonic(), paused=paused, **self._of(queue)))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        await super().seek(queue, offset)
        self.moved(queue, offset)

    async def _seek_to(self, queue: MessageQueue, start: str) -> None:
        await super()._seek_to(queue, start)
        self.moved(queue, self._assigned(queue).next_offset)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.processed()
        await super().__aexit__(kind, error, traceback)


class RecordedPullConsumer(RecordedConsumer, PullConsumer):
    """Records pulls; a commit is taken as a reset by the application."""

    kind = "pull"

    def __init__(self, recorder: Recorder, group: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(group, **arguments)
        self._recorder = recorder

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        selector: Any = "*",  # noqa: ANN401
        **options: Any,  # noqa: ANN401
    ) -> PullResult:
        result = await super().pull(queue, offset, max_messages, selector, **options)
        self.delivered(result.messages)
        if selector == "*" and result.status in CONTIGUOUS:
            offsets = [message.queue_offset for message in result.messages]
            self._recorder.add(
                events.Pulled(
                    at=monotonic(),
                    offset=offset,
                    next_offset=result.next_offset,
                    offsets=offsets,
                    **self._of(queue),
                )
            )
        return result

    def processed(self, queue: MessageQueue, offset: int) -> None:
        """Record that the application has processed what it got of *queue* before *offset*."""
        self._recorder.add(
            events.Processed(
                at=monotonic(),
                consumer=self.consumer_id,
                group=self._group,
                queue=queue,
                offset=offset,
            )
        )

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        self.moved(queue, offset)  # the application may skip and repeat messages
        await super().commit(queue, offset)


class RecordedPopConsumer(RecordedConsumer, PopConsumer):
    """Records received messages and acknowledgements."""

    kind = "pop"

    def __init__(self, recorder: Recorder, group: str, **arguments: Any) -> None:  # noqa: ANN401
        super().__init__(group, **arguments)
        self._recorder = recorder

    def handed_out(self, messages: Iterable[PoppedMessage]) -> None:
        given = list(messages)
        self.delivered(given)
        super().handed_out(given)

    async def ack(self, messages: PoppedMessage | Iterable[PoppedMessage]) -> None:
        given = [messages] if isinstance(messages, PoppedMessage) else list(messages)
        self.settled(given)
        await super().ack(given)

    def __aiter__(self) -> AsyncIterator[PoppedMessage]:
        return RecordedLoop(self, self._engine)

    def settled(self, messages: Iterable[PoppedMessage]) -> None:
        """Record that the application has processed *messages*."""
        for message in messages:
            self._recorder.add(
                events.Settled(
                    at=monotonic(),
                    offset=message.receipt.offset,
                    uid=message.properties.get(UID, ""),
                    **self._of(self.place(message)),
                )
            )


class RecordedLoop(MessageLoop):
    """Records that asking for the next message means that the one before is processed."""

    _last: PoppedMessage | None = None

    async def __anext__(self) -> PoppedMessage:
        consumer = self._consumer
        assert isinstance(consumer, RecordedPopConsumer)
        if self._last is not None:
            consumer.settled([self._last])
        self._last = None
        self._last = await super().__anext__()
        return self._last
