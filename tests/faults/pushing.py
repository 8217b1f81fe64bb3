"""Push consumer groups that record all handlers and check the history at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from time import monotonic
from typing import Any, Final, NamedTuple

import pytest

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import PushConfig
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.push.consumer import PushConsumer
from rocketmq_aio.consumer.push.locks import QueueLocks
from rocketmq_aio.embedded.broker.delay_levels import SCHEDULE_TOPIC
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageQueue
from tests.fakes.cluster import FakeCluster
from tests.history import RULES, Outcome, Recorder, check
from tests.history.recording import stored_log, watch
from tests.unit.consumer.lite_pull_env import GROUP, TOPIC
from tests.unit.instance.client_env import open_sockets
from tests.unit.remoting.until import until

RETRIES: Final = RETRY_PREFIX + GROUP
SOON: Final = 0.02  # retry delay in seconds, instead of ten and more
Behaviour = Callable[[MessageExt], Awaitable[object]]
in_both_ways = pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])


async def accept(_message: MessageExt) -> None:
    """Return without an error."""


class Group:
    """Push consumers of one group on *cluster*, and their history.

    :ivar notes: events in the order of their publication
    :ivar unchecked: rules that the test breaks on purpose
    """

    def __init__(self, cluster: FakeCluster, *, orderly: bool = False) -> None:
        self.cluster = cluster
        self.orderly = orderly
        self.recorder = Recorder()
        self.history = self.recorder.history
        self.notes: list[ConsumerEvent] = []
        self.members: list[PushConsumer] = []
        self.unchecked: set[str] = set()
        for broker in cluster.brokers:
            broker.delays.seconds = [SOON] * len(broker.delays.seconds)

    def member(
        self,
        behave: Behaviour = accept,
        *,
        client: Any = None,  # noqa: ANN401 - as the constructor takes it
        on_event: Callable[[ConsumerEvent], object] | None = None,
        **settings: Any,  # noqa: ANN401 - those of PushConfig
    ) -> PushConsumer:
        """Return a recorded consumer with `start_from="earliest"` and frequent commits."""

        def note(event: ConsumerEvent) -> None:
            self.notes.append(event)
            if on_event is not None:
                on_event(event)

        quick: dict[str, Any] = {
            "start_from": "earliest",
            "commit_interval_seconds": 0.02,
            "suspend_seconds": SOON,
            "close_timeout_seconds": 2.0,
        }
        consumer = self.recorder.push_consumer(
            GROUP,
            on_message=behave,
            orderly=self.orderly,
            client=client or ClientConfig(namesrv=self.cluster.namesrv),
            config=PushConfig(**{**quick, **settings}),
            on_event=note,
        )
        self.members.append(consumer)
        return consumer

    async def join(self, behave: Behaviour = accept, **settings: Any) -> PushConsumer:  # noqa: ANN401
        """Return a member that consumes the topic."""
        consumer = self.member(behave, **settings)
        await consumer.subscribe(TOPIC)
        await consumer.start()
        return consumer

    def events_of(self, kind: type[ConsumerEvent]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.notes if isinstance(event, kind)]

    # --- results --------------------------------------------------------------------------------

    def handled(self, outcome: Outcome = Outcome.OK) -> list[str]:
        """Return the bodies of messages whose handlers had that outcome, in order."""
        return [run.body.decode() for run in self.history.handled if run.outcome is outcome]

    async def have(self, *bodies: str) -> None:
        """Wait until each of *bodies* was handled."""
        await until(lambda: set(bodies) <= set(self.handled()), f"{bodies} to be handled", 10)

    async def drained(self) -> None:
        """Wait until all messages stored for the group are committed."""
        await until(self._is_drained, "everything to be committed", 15)
        self.history.drained = True

    def _is_drained(self) -> bool:
        if any(each.committable < each.next_offset for m in self.members for each in _table(m)):
            return False
        return not self._delayed() and all(
            broker.committed(GROUP, name, number) == log.max_offset
            for broker in self.cluster.brokers
            for name in (TOPIC, RETRIES)
            if name in broker.topics
            for number, log in enumerate(broker.topics[name].queues)
            if log.max_offset
        )

    def _delayed(self) -> bool:
        """Whether sent back messages are not redelivered yet."""
        waiting = visible = 0
        for broker in self.cluster.brokers:
            if SCHEDULE_TOPIC in broker.topics:
                waiting += len(broker.messages(SCHEDULE_TOPIC))
                visible += len(broker.messages(RETRIES))
        return visible < waiting

    def owners(self) -> dict[MessageQueue, list[str]]:
        """Return the current owners of each queue of the topic."""
        return {
            queue: [m.client.client_id for m in self.members if queue in m.assignment()]
            for broker in self.cluster.brokers
            for queue in (
                MessageQueue(TOPIC, broker.name, number)
                for number in range(len(broker.topics[TOPIC].queues))
            )
        }

    async def at_rest(self) -> None:
        """Wait until every queue has one owner."""
        await until(
            lambda: all(len(owners) == 1 for owners in self.owners().values()), "one owner each", 10
        )
        self.history.owners = self.owners()

    def judge(self) -> None:
        """Fail if the history violates a guarantee."""
        for topic in (TOPIC, RETRIES):
            self.history.log += stored_log(topic, *self.cluster.brokers)
        assert self.history.handled, "no handler was called"
        found = check(self.history, *(RULES.keys() - self.unchecked))
        assert not found, found


def _table(member: PushConsumer) -> list[Any]:
    return list(member._engine.table.values())


@asynccontextmanager
async def group_of(
    cluster: FakeCluster, *, orderly: bool = False, quiet: bool = True
) -> AsyncIterator[Group]:
    """A group whose members are closed at the end; then its history is checked.

    :param quiet: whether logged errors fail the test
    """
    group = Group(cluster, orderly=orderly)
    before = _left()
    with watch(group.history) if quiet else nullcontext():
        try:
            yield group
        finally:
            await asyncio.gather(*(member.close() for member in group.members))
        await until(lambda: _left() <= before, "tasks, sockets and threads to end")
    group.judge()


def _left() -> Left:
    """Return all other tasks, open sockets and the number of threads."""
    me = asyncio.current_task()
    tasks = {task for task in asyncio.all_tasks() if task is not me}
    return Left(tasks, open_sockets(), threading.active_count())


class Left(NamedTuple):
    """Upper bound for remaining resources."""

    tasks: set[asyncio.Task[Any]]
    sockets: int
    threads: int

    def __le__(self, other: object) -> bool:
        assert isinstance(other, Left)
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))  # type: ignore[operator]


class QuickLocks(QueueLocks):
    """Queue locks with frequent renewals and a clock that tests advance.

    :ivar ahead: seconds by which the clock is advanced
    """

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - those of the base
        super().__init__(*args, **settings)
        self.ahead = 0.0
        self._clock = lambda: monotonic() + self.ahead

    async def keep_renewing(self, interval_seconds: float = 0.1) -> None:
        await super().keep_renewing(interval_seconds)


def let_time_pass(consumer: PushConsumer, seconds: float = 100.0) -> None:
    """Advance the clock of its locks; by default all leases expire."""
    locks = consumer._engine.locks
    assert isinstance(locks, QuickLocks)
    locks.ahead += seconds
