"""One tenure of a queue: where pulling stands, what is cached, whether it is still ours."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from rocketmq_aio.consumer.pulling.process_queue import ProcessQueue
from rocketmq_aio.consumer.pulling.pull_request import PullRequest
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID

UNKNOWN: Final = -1


class QueueState:
    """A queue while this consumer has it; made anew when the queue comes back.

    Two offsets matter to all kinds of consumers: below *settled* everything may be committed, at
    *next_offset* the next pull begins.  All changes are plain steps: nothing here awaits.
    """

    __slots__ = (
        "broker_id",
        "commit_due",
        "drained",
        "dropped",
        "failure",
        "generation",
        "last_consume",
        "last_pull",
        "next_offset",
        "paused",
        "process_queue",
        "pull_request",
        "queue",
        "released",
        "scope",
        "started",
        "trouble",
        "wake",
    )

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.process_queue = ProcessQueue()
        self.next_offset = UNKNOWN
        self.paused = False
        self.dropped = False
        self.released = False  # others may have it now: late results change nothing
        # Where it stands has to reach the store, automatic commits or not; cleared when it has.
        self.commit_due = False
        self.generation = 0  # counts moves: an answer to an older pull is not used
        self.failure: RocketMQError | None = None  # told to the application
        self.broker_id = MASTER_ID  # the replica that the broker suggested
        self.pull_request: PullRequest | None = None
        self.wake: asyncio.Future[None] | None = None  # what the pull loop waits for
        self.scope: anyio.CancelScope | None = None  # of the pull that is under way
        self.started = anyio.Event()
        self.trouble: RocketMQError | None = None  # why it is not known where to begin
        self.drained: anyio.Event | None = None  # waited for on hand-over
        self.last_pull = 0.0  # both in monotonic seconds, for administrators
        self.last_consume = 0.0

    # --- what the kinds of queues do in their own way -------------------------------------------

    @property
    def committable(self) -> int:
        """Everything below may be committed; `UNKNOWN` until it is known where to begin."""
        raise NotImplementedError

    @property
    def has_in_flight(self) -> bool:
        """Whether the application has messages that it has not said to be done."""
        raise NotImplementedError

    def begin(self, offset: int) -> None:
        """It is known where to begin."""
        raise NotImplementedError

    def restart(self, offset: int) -> int:
        """Forget the cache and go on at *offset*; for the pull loop itself.

        Returns how many messages were dropped.
        """
        raise NotImplementedError

    def step_back(self, offset: int) -> int:
        """The queue ends at *offset*: forget what lies behind it, and go on from there.

        A broker that lost its last messages still has those before them, cached here or not.
        Returns how many messages were dropped.
        """
        raise NotImplementedError

    def refetch(self) -> None:
        """Forget the cache and pull again what was not handed out yet."""
        raise NotImplementedError

    def put(self, messages: list[MessageExt]) -> None:
        """Cache what a pull brought."""
        raise NotImplementedError

    def advance(self, offset: int) -> None:
        """The next pull begins at *offset*; what lies between was filtered out or is cached."""
        raise NotImplementedError

    def block(self) -> None:
        """The pull loop begins to wait for room."""

    def unblock(self) -> None:
        """The pull loop has stopped waiting."""

    def _stop_delivery(self) -> None:
        """Hand out nothing more."""
        raise NotImplementedError

    # --- the pull loop --------------------------------------------------------------------------

    def move(self, offset: int) -> None:
        """Go on at *offset*: forget the cache, abandon the pull that is under way."""
        self.restart(offset)
        self.interrupt()

    def drop(self) -> None:
        """The queue is given up: nothing more is pulled or handed out."""
        if self.dropped:
            return
        self._stop_delivery()
        self.dropped = True
        self.generation += 1
        self.started.set()
        self.interrupt()

    def release(self) -> None:
        """Others may have the queue from now on."""
        self.released = True

    async def wait_until_drained(self) -> None:
        """Return when the application has no messages in hands; for one caller at a time."""
        while self.has_in_flight:
            self.drained = anyio.Event()
            await self.drained.wait()

    def refuse(self, error: RocketMQError) -> None:
        """A broker will not say where to begin: who waits for that is woken, and finds *error*.

        Whoever waits from now on learns what the next try brings.
        """
        self.trouble = error
        if not self.started.is_set():
            woken, self.started = self.started, anyio.Event()
            woken.set()

    def interrupt(self) -> None:
        """Let the pull that is under way be abandoned; its answer will not be used."""
        if self.scope is not None:
            self.scope.cancel()

    def wake_puller(self) -> None:
        """Something changed that the pull loop may be waiting for."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)
