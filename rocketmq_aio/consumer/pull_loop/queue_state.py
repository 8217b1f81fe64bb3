"""Queue state: offsets, cached messages and flags of one assignment of a queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

import anyio

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.pull_loop.process_queue import ProcessQueue
from rocketmq_aio.consumer.pull_loop.pull_request import PullRequest
from rocketmq_aio.consumer.pull_loop.tail_check import TailCheck
from rocketmq_aio.errors import RocketMQError
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID

UNKNOWN: Final = -1
# Of `min_commit_offset`: one that no queue reaches, and one that was set here and is not committed.
UNVERIFIED: Final = 2**63
TRUSTED: Final = -2
WRITTEN_SECONDS: Final = 30.0  # in which a broker writes a commit to disk; by default every 5 s


LastMessage = tuple[int, bytes]  # offset and fixed fields of the last message that was pulled


class Start(NamedTuple):
    """Where pulling starts."""

    offset: int
    is_new: bool = False  # nothing is committed, or it does not count
    # Set if the offset is that of a former assignment: the log must still have this message.
    last_message: LastMessage | None = None


@dataclass(slots=True, eq=False, repr=False)
class QueueState:
    """A queue while it is assigned to this consumer; a later assignment has a new object.

    Offsets below *committable* may be committed; the next pull starts at *next_offset*.  Nothing
    but `wait_until_drained` awaits.
    """

    queue: MessageQueue
    process_queue: ProcessQueue = field(default_factory=ProcessQueue)
    next_offset: int = UNKNOWN
    paused: bool = False
    dropped: bool = False
    released: bool = False  # other members may own it: late results are ignored
    # The position must be committed, also without automatic commits; cleared when it is.
    commit_due: bool = False
    min_commit_offset: int = UNKNOWN  # less is not committed; see `CommitFence`
    # The number of the connection to its broker over which no less than others was committed.
    verified_connection: int = 0
    # Counts `invalidate_commits`: an offset that was read before the last call is outdated.
    invalidations: int = 0
    # The position before it was set back; `UNVERIFIED`: it was set before it was known.
    furthest: int = UNKNOWN
    # Whether a committed offset up to there may be this member's own: a broker that is killed
    # before it has written the commit of the lower position to disk returns the former one.
    furthest_may_return: bool = False
    written_at: float = inf  # by `boottime`
    generation: int = 0  # counts moves: the response to an older pull is ignored
    failure: RocketMQError | None = None  # raised by the next poll
    broker_id: int = MASTER_ID  # the replica that the broker suggested
    # Address, and the number of the connection over which its log was last compared with
    # *last_message*.
    master: str | None = None
    connection: int = 0
    # Of the log at the master, by its last response with messages.
    bounds: tuple[int, int] = (0, 0)
    last_message: LastMessage | None = None
    # If no message was pulled yet: the one before the position is still to be read.
    needs_last_message: bool = True
    # The last message before the first pull that the broker held, or a pause, since the log was
    # compared: meanwhile the topic may have been deleted and created again.
    before_hold: LastMessage | None = None
    log_checked_at: float = -inf  # by the event loop's clock
    # The current expression excluded all messages from there on; `UNKNOWN`: maybe another did.
    filtered_from: int = UNKNOWN
    # A replica ended before the position: what it has there later is of another log.
    replica_ended: bool = False
    tail_check: TailCheck = field(default_factory=TailCheck)
    pull_request: PullRequest | None = None
    wake: asyncio.Future[None] | None = None  # what the pull loop waits for
    scope: anyio.CancelScope | None = None  # of the running pull
    started: anyio.Event = field(default_factory=anyio.Event)
    start_error: RocketMQError | None = None  # why the start offset is unknown
    drained: anyio.Event | None = None  # set when no message is in flight
    # By the event loop's clock, while pulls fail or would; None: the broker responds.
    failing_since: float | None = None
    pull_expired: bool = False  # so long that the broker may have dropped the member
    last_pull: float = 0.0  # both in monotonic seconds, for administrators
    last_consume: float = 0.0

    @property
    def committable(self) -> int:
        """Offsets below may be committed; `UNKNOWN` before the start."""
        raise NotImplementedError

    @property
    def position(self) -> int:
        """The offset that administrators see and `lag` counts from; `UNKNOWN` before the start."""
        return self.committable

    @property
    def has_in_flight(self) -> bool:
        """Whether the application has messages that it has not marked as processed."""
        raise NotImplementedError

    def begin(self, offset: int) -> None:
        """Start at *offset*."""
        self.next_offset = offset
        self.started.set()

    def begin_at(self, start: Start) -> None:
        """Start as found; the log is compared with the message that was pulled before."""
        if start.last_message is not None:
            self.master, self.last_message = "", start.last_message
        self.begin(start.offset)

    def restart(self, offset: int) -> int:
        """Clear the cache and go on at *offset*; return how many messages were dropped."""
        raise NotImplementedError

    def step_back(self, offset: int) -> int:
        """Drop cached messages behind *offset*, the end of the log; return how many.

        A broker that lost its last messages still has those before them, cached here or not.  It
        may have stored others since.
        """
        raise NotImplementedError

    def refetch(self) -> None:
        """Clear the cache and pull again what was not delivered yet."""
        raise NotImplementedError

    def put(self, messages: list[MessageExt]) -> None:
        """Cache pulled messages."""
        raise NotImplementedError

    def advance(self, offset: int) -> None:
        """Start the next pull at *offset*; all messages before it are cached or filtered out."""
        self.next_offset = offset

    def rescan(self, offset: int) -> None:
        """Pull again from *offset* on: all messages from there on were filtered out."""
        self._note_furthest()
        self.next_offset = min(self.next_offset, offset)
        if self.min_commit_offset != TRUSTED:
            self.require(self.min_commit_offset)

    def require(self, committed: int) -> None:
        """Have nothing less than *committed* committed, unless this member may have done it."""
        own = self.furthest_may_return and committed <= self.furthest
        self.min_commit_offset = UNKNOWN if own else committed

    def _note_furthest(self) -> None:
        """Note what may be committed by now: the position is about to be set."""
        own = self.committable
        self.furthest = UNVERIFIED if own == UNKNOWN else max(self.furthest, own)
        self.furthest_may_return, self.written_at = self.furthest != UNVERIFIED, inf

    def block(self) -> None:
        """Note that the pull loop waits for room."""

    def unblock(self) -> None:
        """Note that the pull loop no longer waits."""

    def _stop_delivery(self) -> None:
        """Deliver no more messages."""
        raise NotImplementedError

    def move(self, offset: int) -> None:
        """Go on at *offset*: clear the cache, cancel the running pull."""
        self.forget_log()  # messages that are skipped now are not missed later
        self.restart(offset)
        self.interrupt()

    def forget_master(self) -> None:
        """Have the log compared with *last_message* before the next pull."""
        if self.master is not None:
            self.master = ""

    def was_filtered(self, offset: int) -> bool:
        """Whether all messages from *offset* on were filtered out."""
        return UNKNOWN != self.filtered_from <= offset

    def forget_log(self) -> None:
        """Compare no log with what was pulled before."""
        self.last_message = self.before_hold = None
        self.needs_last_message = True

    def trust(self) -> None:
        """Allow a commit below those of other members: the position was set explicitly."""
        self.min_commit_offset = TRUSTED

    def invalidate_commits(self) -> None:
        """Note that other members may have the queue, and may have committed more."""
        self.invalidations += 1
        if self.min_commit_offset not in (TRUSTED, UNVERIFIED):
            self.furthest_may_return &= boottime() < self.written_at
            self.min_commit_offset = UNVERIFIED

    def note_committed(self) -> None:
        """Note that the position is committed; later ones are not set explicitly."""
        if self.min_commit_offset == TRUSTED:
            self.min_commit_offset = UNKNOWN
        if self.written_at == inf:
            self.written_at = boottime() + WRITTEN_SECONDS

    def drop(self) -> None:
        """Stop pulling and delivering: the queue is revoked.  A second call changes nothing."""
        self._stop_delivery()
        self.dropped = True
        self.generation += 1
        self.started.set()
        self.interrupt()

    def release(self) -> None:
        """Allow other members to have the queue."""
        self.released = True

    async def wait_until_drained(self) -> None:
        """Return when no message is in flight; for one caller at a time."""
        while self.has_in_flight:
            self.drained = anyio.Event()
            await self.drained.wait()

    def fail_start(self) -> None:
        """Wake the callers that wait for `started`, who find `start_error`.

        Later callers wait for the next attempt.
        """
        if not self.started.is_set():
            woken, self.started = self.started, anyio.Event()
            woken.set()

    def interrupt(self) -> None:
        """Cancel the running pull; its response is ignored."""
        if self.scope is not None:
            self.scope.cancel()

    def wake_puller(self) -> None:
        """Make the pull loop check again whether it may pull."""
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)
