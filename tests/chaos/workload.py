"""Workload: what the application in each simulated process does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from rocketmq_aio import (
    AutoBatch,
    ClientConfig,
    LitePullConfig,
    LitePullConsumer,
    Message,
    MessageExt,
    PopConfig,
    PopConsumer,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    RocketMQError,
    TransactionProducer,
    TransactionState,
)
from tests.chaos.loop import Process, SimulatedLoop
from tests.chaos.plan import Client
from tests.chaos.record import MemberRecorder, Record
from tests.history import UID

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


class Member:
    """A process of the plan; it can crash and start again.

    :ivar quiet: a producer sends nothing more, but still runs
    """

    def __init__(
        self, loop: SimulatedLoop, record: Record, plan: Client, seed: int, namesrv: str
    ) -> None:
        self.plan = plan
        self.record = record
        self.config = ClientConfig(namesrv=namesrv)
        self.draw = random.Random(f"{plan.name} {seed}")
        self.decisions: dict[str, TransactionState] = {}  # the database of the application
        self.quiet = False
        self.recorder = MemberRecorder(record, plan.name)
        self._loop = loop
        self._clients = 0
        self.process: Process = loop.process(plan.name)
        self.stopping = asyncio.Event()
        self._main: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """Name of the current client, which differs after every start."""
        return f"{self.plan.name}.{self._clients}"

    @property
    def runs(self) -> bool:
        return self._main is not None

    def start(self) -> None:
        """Start the process, with an application that runs until `stop`."""
        if self.process.dead:
            self.process = self._loop.process(self.plan.name)
        self.stopping = asyncio.Event()
        self._main = self.process.context().run(self._loop.create_task, self._run())

    def crash(self) -> None:
        """Kill the process: no code of it runs any more."""
        self.record.add("crash", self.name)
        self._loop.kill(self.process)
        self._loop.network.kill(self.process)
        self._main = None

    async def stop(self, seconds: float) -> None:
        """Have the application end."""
        main, self._main = self._main, None
        if main is None:
            return
        self.stopping.set()
        done, _ = await asyncio.wait([main], timeout=seconds)
        if not done:
            self.record.violation(f"{self.name} did not end within {seconds:g} s: {stack(main)}")

    async def pause(self, seconds: float) -> None:
        """Wait, until `stop` at most."""
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
        self.record.done(self.plan.group, message)

    async def _run(self) -> None:
        """Run one client after the other: an application that starts again after errors."""
        make, use = KINDS[self.plan.kind]
        while not self.stopping.is_set():
            self._clients += 1
            self.recorder = MemberRecorder(self.record, self.name)
            client = make(self)
            try:
                if self.plan.consumes:
                    await client.subscribe(self.plan.topic)
                await client.start()
                self.record.add("started", self.name)
                await use(self, client)
            except RocketMQError as error:
                self.record.add("error", self.name, type(error).__name__, str(error)[:160])
            except Exception as error:  # noqa: BLE001 - a violation, whatever it is
                self.record.failure(f"{self.name} raised", error)
            await self._close(client)
            if not self.stopping.is_set():
                await self.pause(START_AGAIN_SECONDS)

    async def _close(self, client: Any) -> None:
        self.record.add("closing", self.name)
        try:
            async with self.bounded("close", CLOSE_SECONDS):
                await client.close()
        except Exception as error:  # noqa: BLE001 - a violation, whatever it is
            self.record.failure(f"close() of {self.name} raised", error)
        self.record.add("closed", self.name)

    def bounded(self, what: str, seconds: float) -> Bounded:
        return Bounded(self, what, seconds)


class Bounded:
    """Context of a call whose time has a bound; a frozen process has longer."""

    def __init__(self, member: Member, what: str, seconds: float) -> None:
        self._member = member
        self._what = what
        self._seconds = seconds
        self._watch: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        member, loop = self._member, asyncio.get_running_loop()
        frozen = member.process.frozen_seconds
        task = asyncio.current_task()

        def late() -> None:
            more = member.process.frozen_seconds - frozen
            if more > 0:
                self._watch = loop.call_later(more, late_really)
            else:
                late_really()

        def late_really() -> None:
            text = f"{member.name}: {self._what} takes more than {self._seconds:g} s"
            member.record.violation(f"{text}: {stack(task)}")

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


async def _send(member: Member, call: Awaitable[object], what: str) -> None:
    """Await a send; its outcome is in the history."""
    with suppress(RocketMQError):
        async with member.bounded(what, SEND_SECONDS + LATE_SECONDS):
            await call


Send = Callable[[Member, Any, str, str], Awaitable[object]]


def _producing(send: Send) -> Callable[[Member, Any], Awaitable[None]]:
    async def use(member: Member, producer: Any) -> None:
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


async def _send_plain(member: Member, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode())
    await _send(member, producer.send(message), f"send of {uid}")


async def _send_keyed(member: Member, producer: Producer, uid: str, task: str) -> None:
    key = f"{task}/{member.draw.choice(KEYS)}"
    message = Message(member.plan.topic, uid.encode())
    await _send(member, producer.send(message, sharding_key=key), f"send of {uid}")


async def _send_together(member: Member, producer: Producer, uid: str, _task: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number in range(member.draw.randint(1, 8)):
            tasks.create_task(_send_plain(member, producer, f"{uid}+{number}", ""))


async def _send_batch(member: Member, producer: Producer, uid: str, _task: str) -> None:
    uids = [f"{uid}+{number}" for number in range(member.draw.randint(1, 8))]
    messages = [Message(member.plan.topic, each.encode()) for each in uids]
    await _send(member, producer.send_batch(messages), f"send_batch of {uid}")


async def _send_delayed(member: Member, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode(), delay_level=member.draw.randint(1, 2))
    await _send(member, producer.send(message), f"send of {uid}")


async def _send_oneway(member: Member, producer: Producer, uid: str, _task: str) -> None:
    message = Message(member.plan.topic, uid.encode())
    await _send(member, producer.send_oneway(message), f"send_oneway of {uid}")


async def _send_in_transaction(
    member: Member, producer: TransactionProducer, uid: str, _task: str
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
            member.record.committed(tx.message.properties[UID], member.plan.topic)
            if state is TransactionState.UNKNOWN:
                tx.unknown()

    # The half message and the decision have a timeout each.
    with suppress(RocketMQError):
        async with member.bounded(f"transaction of {uid}", 2 * SEND_SECONDS + 2 * LATE_SECONDS):
            await run()


def _plain_producer(member: Member) -> Producer:
    return member.recorder.producer(member.plan.group, client=member.config)


def _auto_batch_producer(member: Member) -> Producer:
    config = ProducerConfig(auto_batch=AutoBatch(linger_seconds=0.005, max_messages=16))
    return member.recorder.producer(member.plan.group, client=member.config, config=config)


def _transaction_producer(member: Member) -> TransactionProducer:
    async def check(message: MessageExt) -> TransactionState:
        await member.work()
        return member.decisions.get(message.body.decode(), TransactionState.ROLLBACK)

    topics = (member.plan.topic,)
    return member.recorder.transaction_producer(
        member.plan.group, check=check, client=member.config, topics=topics
    )


# --- consumers ----------------------------------------------------------------------------------


def _settings(member: Member) -> dict[str, Any]:
    return {
        "start_from": "earliest",
        "commit_interval_seconds": member.plan.option("commit_interval", 5.0),
        "rebalance_interval_seconds": member.plan.option("rebalance_interval", 20.0),
    }


def _push_consumer(member: Member) -> PushConsumer:
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


async def _run_push(member: Member, consumer: PushConsumer) -> None:
    stop = asyncio.ensure_future(member.stopping.wait())
    run = asyncio.ensure_future(consumer.run())
    await asyncio.wait([stop, run], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if run.done():
        await run
        return
    await consumer.close()
    await run


def _lite_consumer(member: Member) -> LitePullConsumer:
    config = LitePullConfig(**_settings(member), auto_commit=not member.plan.option("manual", 0))
    return member.recorder.lite_pull_consumer(
        member.plan.group, client=member.config, config=config
    )


async def _run_lite(member: Member, consumer: LitePullConsumer) -> None:
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
                member.record.add("error", member.name, "commit", str(error)[:160])


def _pop_consumer(member: Member) -> PopConsumer:
    config = PopConfig(
        start_from="earliest",
        invisible_seconds=INVISIBLE_SECONDS,
        batch_size=int(member.plan.option("batch", 32)),
        wait_seconds=5.0,
    )
    return member.recorder.pop_consumer(member.plan.group, client=member.config, config=config)


async def _run_pop(member: Member, consumer: PopConsumer) -> None:
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
                member.record.add("error", member.name, "ack", str(error)[:160])


Make = Callable[[Member], Any]
Use = Callable[[Member, Any], Awaitable[None]]
KINDS: Final[dict[str, tuple[Make, Use]]] = {
    "plain": (_plain_producer, _producing(_send_plain)),
    "keyed": (_plain_producer, _producing(_send_keyed)),
    "auto_batch": (_auto_batch_producer, _producing(_send_together)),
    "batch": (_plain_producer, _producing(_send_batch)),
    "transaction": (_transaction_producer, _producing(_send_in_transaction)),
    "delayed": (_plain_producer, _producing(_send_delayed)),
    "oneway": (_plain_producer, _producing(_send_oneway)),
    "push": (_push_consumer, _run_push),
    "orderly": (_push_consumer, _run_push),
    "broker_rebalance": (_push_consumer, _run_push),
    "lite": (_lite_consumer, _run_lite),
    "pop": (_pop_consumer, _run_pop),
}
