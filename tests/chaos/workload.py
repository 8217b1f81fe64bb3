"""Workload: what the application in each process does, simulated or real."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from rocketmq_aio import (
    AutoBatch,
    ClientConfig,
    ConfigError,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    PopConfig,
    PopConsumer,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConfig,
    PushConsumer,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from tests.chaos.plan import Client
from tests.history import UID, Recorder
from tests.history.clients import RecordedPullConsumer
from tests.history.offset_table import OffsetTable

PADDING: Final = b"x" * 256
DELAYS_SECONDS: Final = (1.0, 3.0, 8.0)
RECALLED: Final = 0.6  # of the messages with a delay in seconds
REQUEST: Final = "request"  # property of requests
PULL_SECONDS: Final = 0.1  # between rounds of pulls
REQUEST_SECONDS: Final = 15.0
KEYS: Final = ("a", "b", "c")
START_AGAIN_SECONDS: Final = 0.5
MOST_TRIES_THAT_FAIL: Final = 2
DELAYED_SECONDS: Final = 2
SEND_SECONDS: Final = 3.0
LATE_SECONDS: Final = 1.0  # by which a call may exceed its timeout
CLOSE_SECONDS: Final = 40.0
INVISIBLE_SECONDS: Final = 10.0


class HandlerError(Exception):
    """Raised by handlers of the workload."""


class Journal(Protocol):
    """Takes what happens in a process, and what is wrong apart from the rules of the history."""

    def add(self, *words: object) -> None:
        """Add a line."""
        ...

    def violation(self, text: str) -> None: ...

    def failure(self, what: str, error: BaseException) -> None:
        """Add a violation: an exception that must not be."""
        ...

    def committed(self, uid: str, topic: str) -> None:
        """Note that the application committed the transaction of a message."""
        ...

    def done(self, group: str, message: MessageExt) -> None:
        """Note that *group* has processed *message*."""
        ...


class Application:
    """Use the client of a process until `stopping` is set.

    :ivar quiet: a producer sends nothing more, but still runs
    """

    def __init__(self, journal: Journal, plan: Client, seed: int, config: ClientConfig) -> None:
        self.plan = plan
        self.journal = journal
        self.config = config
        self.draw = random.Random(f"{plan.name} {seed}")
        # The database of the application:
        self.decisions: dict[str, TransactionState] = {}
        self.offsets: dict[MessageQueue, int] = {}
        self.quiet = False
        self.stopping = asyncio.Event()
        self.recorder: Recorder
        self._clients = 0

    @property
    def name(self) -> str:
        """Name of the current client, which differs after every start."""
        return f"{self.plan.name}.{self._clients}"

    def new_recorder(self) -> Recorder:
        """Return the recorder of the next client."""
        raise NotImplementedError

    def not_running_seconds(self) -> float:
        """Return how long the process was frozen or not scheduled until now."""
        raise NotImplementedError

    async def pause(self, seconds: float) -> None:
        """Wait, until `stopping` is set at most."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    async def work(self) -> None:
        """Take some time for a message."""
        if most := self.plan.option("work", 0.0):
            await asyncio.sleep(most * self.draw.random())

    def fails(self, tries: int) -> bool:
        share = self.plan.option("fails", 0.0)
        return tries < MOST_TRIES_THAT_FAIL and self.draw.random() < share

    def done(self, message: MessageExt) -> None:
        self.journal.done(self.plan.scope, message)

    async def run(self) -> None:
        """Run one client after the other: an application that starts again after errors."""
        make, use = KINDS[self.plan.kind]
        while not self.stopping.is_set():
            self._clients += 1
            self.recorder = self.new_recorder()
            client = make(self)
            try:
                if self.plan.subscribes:
                    await client.subscribe(self.plan.topic)
                await client.start()
                self.journal.add("started", self.name)
                await use(self, client)
            except RocketMQError as error:
                self.journal.add("error", self.name, type(error).__name__, str(error)[:160])
            except Exception as error:  # noqa: BLE001 - a violation, whatever it is
                self.journal.failure(f"{self.name} raised", error)
            await self._close(client)
            if not self.stopping.is_set():
                await self.pause(START_AGAIN_SECONDS)

    async def _close(self, client: Any) -> None:
        self.journal.add("closing", self.name)
        try:
            async with self.bounded("close", CLOSE_SECONDS):
                await client.close()
        except Exception as error:  # noqa: BLE001 - a violation, whatever it is
            self.journal.failure(f"close() of {self.name} raised", error)
        self.journal.add("closed", self.name)

    def bounded(self, what: str, seconds: float) -> Bounded:
        return Bounded(self, what, seconds)


class Bounded:
    """Context of a call whose time has a bound; a process that did not run has longer."""

    def __init__(self, member: Application, what: str, seconds: float) -> None:
        self._member = member
        self._what = what
        self._seconds = seconds
        self._watch: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        member, loop = self._member, asyncio.get_running_loop()
        missed = member.not_running_seconds()
        task = asyncio.current_task()

        def late() -> None:
            more = member.not_running_seconds() - missed
            if more > 0:
                self._watch = loop.call_later(more, late_really)
            else:
                late_really()

        def late_really() -> None:
            text = f"{member.name}: {self._what} takes more than {self._seconds:g} s"
            member.journal.violation(f"{text}: {stack(task)}")

        self._watch = loop.call_later(self._seconds, late)

    async def __aexit__(self, *_error: object) -> None:
        assert self._watch is not None
        self._watch.cancel()


def stack(task: asyncio.Task[Any] | None) -> str:
    """Return the names of the coroutines that a task is in."""
    names = []
    awaited: Any = None if task is None else task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return " > ".join(names)


# --- producers ----------------------------------------------------------------------------------


async def _send(member: Application, call: Awaitable[object], what: str) -> None:
    """Await a send; its outcome is in the history."""
    with suppress(RocketMQError):
        async with member.bounded(what, SEND_SECONDS + LATE_SECONDS):
            await call


Send = Callable[[Application, Any, str, str], Awaitable[object]]


def _producing(send: Send) -> Callable[[Application, Any], Awaitable[None]]:
    async def use(member: Application, producer: Any) -> None:
        async def sender(number: int) -> None:
            count = 0
            while not member.stopping.is_set() and not member.quiet:
                count += 1
                uid = f"{member.name}/{number}/{count}"
                await send(member, producer, uid, f"{member.plan.name}/{number}")
                await member.pause(member.plan.option("pause", 0.05) * member.draw.random() * 2)

        async with asyncio.TaskGroup() as tasks:
            for number in range(int(member.plan.option("tasks", 1))):
                tasks.create_task(sender(number))
        await member.stopping.wait()

    return use


async def _send_plain(member: Application, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode())
    await _send(member, producer.send(message), f"send of {uid}")


async def _send_keyed(member: Application, producer: Producer, uid: str, task: str) -> None:
    key = f"{task}/{member.draw.choice(KEYS)}"
    message = Message(member.plan.topic, uid.encode())
    await _send(member, producer.send(message, sharding_key=key), f"send of {uid}")


async def _send_together(member: Application, producer: Producer, uid: str, _task: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(member.draw.randint(1, 8)):
            tasks.create_task(_send_plain(member, producer, f"{uid}+{number}", ""))


async def _send_batch(member: Application, producer: Producer, uid: str, _task: str) -> None:
    uids = [f"{uid}+{number}" for number in range(member.draw.randint(1, 8))]
    messages = [Message(member.plan.topic, each.encode()) for each in uids]
    await _send(member, producer.send_batch(messages), f"send_batch of {uid}")


async def _send_delayed(member: Application, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode(), delay_level=member.draw.randint(1, 2))
    await _send(member, producer.send(message), f"send of {uid}")


async def _send_compressed(member: Application, producer: Producer, uid: str, _task: str) -> None:
    body = uid.encode() + PADDING * member.draw.randint(0, 2)
    await _send(member, producer.send(Message(member.plan.topic, body)), f"send of {uid}")


async def _send_and_recall(member: Application, producer: Producer, uid: str, _task: str) -> None:
    seconds = member.draw.choice(DELAYS_SECONDS)
    message = Message(member.plan.topic, uid.encode(), delay_seconds=seconds)
    try:
        async with member.bounded(f"send of {uid}", SEND_SECONDS + LATE_SECONDS):
            result = await producer.send(message)
    except RocketMQError:
        return
    if member.draw.random() < RECALLED:
        await member.pause(seconds * member.draw.random())
        recalling = producer.recall(member.plan.topic, result.recall_handle)
        await _send(member, recalling, f"recall of {uid}")


async def _request(member: Application, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode(), properties={REQUEST: "1"})
    await _send(member, producer.request(message, SEND_SECONDS), f"request of {uid}")


async def _send_oneway(member: Application, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode())
    await _send(member, producer.send_oneway(message), f"send_oneway of {uid}")


async def _send_in_transaction(
    member: Application, producer: TransactionProducer, uid: str, _task: str
) -> None:
    states = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
    state = member.draw.choices(states, (6, 2, 2))[0]

    async def run() -> None:
        async with producer.transaction(Message(member.plan.topic, uid.encode())) as tx:
            await member.work()
            if state is TransactionState.ROLLBACK:
                member.decisions[uid] = state
                await tx.rollback()
                return
            member.decisions[uid] = TransactionState.COMMIT
            member.journal.committed(tx.message.properties[UID], member.plan.topic)
            if state is TransactionState.UNKNOWN:
                tx.unknown()

    # The half message and the decision have a timeout each.
    with suppress(RocketMQError):
        async with member.bounded(f"transaction of {uid}", 2 * SEND_SECONDS + 2 * LATE_SECONDS):
            await run()


def _plain_producer(member: Application) -> Producer:
    return member.recorder.producer(member.plan.group, client=member.config)


def _auto_batch_producer(member: Application) -> Producer:
    config = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0.005, max_messages=16))
    return member.recorder.producer(member.plan.group, client=member.config, config=config)


def _compressing_producer(member: Application) -> Producer:
    config = ProducerConfig(compress_above_bytes=len(PADDING))
    return member.recorder.producer(member.plan.group, client=member.config, config=config)


def _transaction_producer(member: Application) -> TransactionProducer:
    async def check(message: MessageExt) -> TransactionState:
        await member.work()
        return member.decisions.get(message.body.decode(), TransactionState.ROLLBACK)

    topics = (member.plan.topic,)
    return member.recorder.transaction_producer(
        member.plan.group, check=check, client=member.config, topics=topics
    )


# --- consumers ----------------------------------------------------------------------------------


def _settings(member: Application) -> dict[str, Any]:
    return {
        "start_from": "earliest",
        "commit_interval_seconds": member.plan.option("commit_interval", 5.0),
        "rebalance_interval_seconds": member.plan.option("rebalance_interval", 20.0),
    }


def _push_consumer(member: Application) -> PushConsumer:
    kind = member.plan.kind

    async def handle(message: MessageExt) -> None:
        await member.work()
        if member.fails(message.reconsume_times):
            raise HandlerError
        member.done(message)

    config = PushConfig(
        **_settings(member),
        concurrency=4,
        suspend_seconds=0.5,
        client_rebalance=kind != "broker_rebalance",
        pop_invisible_seconds=INVISIBLE_SECONDS,
    )
    return member.recorder.push_consumer(
        member.plan.group,
        on_message=handle,
        orderly=kind == "orderly",
        client=member.config,
        config=config,
    )


def _broadcasting_consumer(member: Application) -> PushConsumer:
    async def handle(message: MessageExt) -> None:
        await member.work()
        member.done(message)

    config = PushConfig(
        **_settings(member),
        message_model=MessageModel.BROADCASTING,
        offset_store=OffsetTable(member.plan.name, member.offsets),
    )
    return member.recorder.push_consumer(
        member.plan.group, on_message=handle, client=member.config, config=config
    )


class Replying:
    """A consumer that replies to requests, and the producer of its replies."""

    def __init__(self, member: Application) -> None:
        self._producer = member.recorder.producer(member.plan.group, client=member.config)
        self.consumer = member.recorder.push_consumer(
            member.plan.group,
            on_message=self._handle,
            client=member.config,
            config=PushConfig(**_settings(member)),
        )
        self._member = member

    async def subscribe(self, topic: str) -> None:
        await self.consumer.subscribe(topic)

    async def start(self) -> None:
        await self._producer.start()
        await self.consumer.start()

    async def close(self) -> None:
        await self.consumer.close()
        await self._producer.close()

    async def _handle(self, message: MessageExt) -> None:
        await self._member.work()
        if REQUEST in message.properties:
            reply = self._producer.reply(message, message.body)
            await _send(self._member, reply, "reply")  # the requester may not wait any more
        self._member.done(message)


async def _run_replying(member: Application, replying: Replying) -> None:
    await _run_push(member, replying.consumer)


async def _run_push(member: Application, consumer: PushConsumer) -> None:
    stop = asyncio.ensure_future(member.stopping.wait())
    run = asyncio.ensure_future(consumer.run())
    await asyncio.wait([stop, run], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if run.done():
        await run
        return
    await consumer.close()
    await run


def _lite_consumer(member: Application) -> LitePullConsumer:
    config = LitePullConfig(**_settings(member), auto_commit=not member.plan.option("manual", 0))
    return member.recorder.lite_pull_consumer(
        member.plan.group, client=member.config, config=config
    )


async def _run_lite(member: Application, consumer: LitePullConsumer) -> None:
    batch, manual = int(member.plan.option("batch", 32)), member.plan.option("manual", 0)
    while not member.stopping.is_set():
        async with member.bounded("poll", 1.0 + LATE_SECONDS):
            messages = await consumer.poll(1.0, batch)
        for message in messages:
            await member.work()
            member.done(message)
        if manual and messages:
            try:
                await consumer.commit()
            except RocketMQError as error:
                member.journal.add("error", member.name, "commit", str(error)[:160])
        if messages and member.draw.random() < member.plan.option("jumps", 0.0):
            with suppress(ConfigError):  # the queue was revoked
                await _jump(member, consumer, member.draw.choice(messages))


async def _jump(member: Application, consumer: LitePullConsumer, message: MessageExt) -> None:
    """Read *message* again, or pause its queue for a poll."""
    if member.draw.random() < 0.5:
        await consumer.seek(message.queue, message.queue_offset)
        return
    consumer.pause([message.queue])
    for other in await consumer.poll(0.5):
        await member.work()
        member.done(other)
    consumer.resume([message.queue])


def _pull_consumer(member: Application) -> PullConsumer:
    member.recorder.subscribed(member.plan.group, member.plan.topic)
    return member.recorder.pull_consumer(member.plan.group, client=member.config)


async def _run_pulls(member: Application, consumer: RecordedPullConsumer) -> None:
    batch, offsets = int(member.plan.option("batch", 32)), member.offsets
    while not member.stopping.is_set():
        await member.pause(PULL_SECONDS)
        for queue in await consumer.message_queues(member.plan.topic):
            offset = offsets.get(queue, 0)
            try:
                async with member.bounded("pull", REQUEST_SECONDS + LATE_SECONDS):
                    result = await consumer.pull(queue, offset, batch)
            except RocketMQError as error:
                member.journal.add("error", member.name, "pull", str(error)[:160])
                continue
            for message in result.messages:
                await member.work()
                member.done(message)
            offsets[queue] = result.next_offset
            consumer.processed(queue, result.next_offset)


def _pop_consumer(member: Application) -> PopConsumer:
    config = PopConfig(
        start_from="earliest",
        invisible_seconds=INVISIBLE_SECONDS,
        batch_size=int(member.plan.option("batch", 32)),
        wait_seconds=5.0,
    )
    return member.recorder.pop_consumer(member.plan.group, client=member.config, config=config)


async def _run_pop(member: Application, consumer: PopConsumer) -> None:
    while not member.stopping.is_set():
        messages = await consumer.receive(wait_seconds=1.0)
        for message in messages:
            await member.work()
            try:
                if member.fails(message.reconsume_times):
                    await consumer.retry(message, 2.0)
                    continue
                member.done(message)
                await consumer.ack(message)
            except RocketMQError as error:
                member.journal.add("error", member.name, "ack", str(error)[:160])


Make = Callable[[Application], Any]
Use = Callable[[Application, Any], Awaitable[None]]
KINDS: Final[dict[str, tuple[Make, Use]]] = {
    "plain": (_plain_producer, _producing(_send_plain)),
    "keyed": (_plain_producer, _producing(_send_keyed)),
    "auto_batch": (_auto_batch_producer, _producing(_send_together)),
    "batch": (_plain_producer, _producing(_send_batch)),
    "transaction": (_transaction_producer, _producing(_send_in_transaction)),
    "delayed": (_plain_producer, _producing(_send_delayed)),
    "oneway": (_plain_producer, _producing(_send_oneway)),
    "compressed": (_compressing_producer, _producing(_send_compressed)),
    "recall": (_plain_producer, _producing(_send_and_recall)),
    "request": (_plain_producer, _producing(_request)),
    "push": (_push_consumer, _run_push),
    "orderly": (_push_consumer, _run_push),
    "broker_rebalance": (_push_consumer, _run_push),
    "broadcast": (_broadcasting_consumer, _run_push),
    "reply": (Replying, _run_replying),
    "lite": (_lite_consumer, _run_lite),
    "pull": (_pull_consumer, _run_pulls),
    "pop": (_pop_consumer, _run_pop),
}
