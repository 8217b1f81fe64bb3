"""Queue locks: give each queue of an orderly group one owner across processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Set
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import anyio
import msgspec

from rocketmq_aio.consumer.common.clock import boottime
from rocketmq_aio.consumer.push.dispatch_queue import DispatchQueue, InFlight
from rocketmq_aio.errors import BrokerError, NotConnectedError, RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.bodies import LockBatchRequest, LockBatchResponse, MessageQueueBody
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import RequestHeader, queue_fields
from rocketmq_aio.protocol.requests.groups import LockBatchMQ, UnlockBatchMQ
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.backoff import LONGEST_SECONDS
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.keyed_lock import KeyedLock
from rocketmq_aio.remoting.remoting_client import LATE_SECONDS

logger = get_logger(__name__)

LEASE_SECONDS: Final = 30.0  # brokers keep a lock twice as long, which covers a stall
RENEW_SECONDS: Final = 20.0
CHECKS_PER_INTERVAL: Final = 20  # checks for due renewals and expired leases
BROKER_LOCK_SECONDS: Final = 60.0  # after which brokers give a lock to others
# After a broker has returned without its locks, owners request them again: they connect within the
# longest backoff, and check every second.
RETURN_SECONDS: Final = LONGEST_SECONDS + RENEW_SECONDS / CHECKS_PER_INTERVAL
LAST_UNLOCK_SECONDS: Final = 5.0  # when the consumer closes

_RequestAtBroker: TypeAlias = Callable[[str, list[MessageQueue]], Coroutine[Any, Any, None]]
_Connection: TypeAlias = tuple[str, int]  # address of the broker, and the number of the connection
NEVER_CONNECTED: Final[_Connection] = ("", 0)


class Lease(NamedTuple):
    """Until when a lock holds, and over which connection it was granted."""

    until: float
    connection: _Connection


class LockOwner(Protocol):
    """What uses the locks: see `LostLocks`."""

    def on_lost(self, queue: MessageQueue) -> bool:
        """*queue* is not held any more, without `release`; return whether to request it again."""
        ...

    def on_taken(self, queue: MessageQueue) -> None:
        """Another member has the lock of *queue*; called after `on_lost`."""

    async def unchanged(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        """Return those of *queues* of which no other member committed more meanwhile."""
        ...

    def on_resumed(self, queue: MessageQueue) -> None:
        """*queue* is held again."""


class QueueLocks:
    """Locks of *group* at the masters of its queues, renewed regularly.

    A lock belongs to the client id and outlives connections.  A lease counts from the request, so
    a process that was stopped, or suspended with its machine, finds its leases expired at once.
    An expired lease pauses its queue: its lock is requested again, and the queue is held again
    when the broker grants it and no other member has made progress.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        owner: LockOwner,
        *,
        clock: Callable[[], float] = boottime,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._instance = instance
        self._group = group
        self._owner = owner
        self._clock = clock
        self._lease_seconds = lease_seconds
        # Logical queues of one broker name are on several brokers.
        self._broker_of = instance.routes.broker_of
        self._leases: dict[MessageQueue, Lease] = {}
        self._paused: set[MessageQueue] = set()  # since their leases expired; not held
        # Brokers process requests in any order: a renewal must not overtake an unlock.
        self._turns = KeyedLock[str]()  # by broker
        self._renewing: set[str] = set()
        # Queues whose unlock failed, and until when their brokers may keep the locks.
        self._not_unlocked: dict[MessageQueue, float] = {}
        # Until when brokers may execute requests that they have not responded to.
        self._late_locks: dict[MessageQueue, float] = {}
        self._late_unlocks: dict[MessageQueue, float] = {}
        # By broker: the last connection, and until when owners come first after it was lost.
        self._connections: dict[str, tuple[_Connection, float]] = {}
        self._connections_noted = False  # at the brokers of the routes
        self._failing: set[str] = set()  # brokers whose last request failed

    def holds(self, queue: MessageQueue) -> bool:
        """Whether this client owns *queue* now."""
        if self._paused and queue in self._paused:  # called before each handler
            return False
        return self._is_leased(queue)

    async def acquire(self, queues: Collection[MessageQueue]) -> frozenset[MessageQueue]:
        """Request locks; return the queues that are owned now.

        A queue whose broker does not respond is not among them, unless its lease still holds.
        """
        self._paused.difference_update(queues)  # what was paused was an earlier assignment
        await self._at_each_broker(queues, self._lock)
        return frozenset(queue for queue in queues if self.holds(queue))

    def unanswered(self) -> list[MessageQueue]:
        """Return queues that are not owned here, though their brokers may have granted them."""
        return [
            queue
            for queue in self._late_locks
            if queue not in self._leases and queue not in self._not_unlocked
        ]

    async def release(self, queues: Collection[MessageQueue]) -> None:
        """Release locks, also those whose `acquire` was cancelled.

        What fails is repeated by `keep_renewing`, until the broker expires the lock after a minute.
        """
        self._forget(queues)
        await self._at_each_broker(queues, self._unlock)

    async def release_rest(self, used: Set[MessageQueue], *, ended: bool) -> None:
        """Unlock all queues before the consumer closes: nothing repeats it.

        :param used: queues that may have handlers, and stay locked unless these have *ended*
        """
        known = {*self._leases, *self._late_locks, *used}
        self._forget(known if ended else known - used)
        with anyio.move_on_after(LAST_UNLOCK_SECONDS):
            await self._at_each_broker(list(self._not_unlocked), self._unlock_at_last)

    async def keep_renewing(self, interval_seconds: float = RENEW_SECONDS) -> None:
        """Renew until cancelled, brokers concurrently; report lost locks."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(interval_seconds / CHECKS_PER_INTERVAL)
                self._drop_ended()
                self._drop_past()
                self._note_connections()
                due = self._due(interval_seconds)
                left = {self._broker_of(queue) for queue in self._not_unlocked}
                for broker in (due | left) - self._renewing:
                    self._renewing.add(broker)
                    tasks.start_soon(self._repeat, broker, broker in due)

    def _due(self, interval_seconds: float) -> set[str]:
        """Return brokers whose locks are due for renewal, or may have been forgotten.

        A broker that restarts and a new master do not know the owners, and the first member that
        requests a lock gets it.  So it does after an unlock that the broker executes late.
        """
        until = self._clock() + self._lease_seconds - interval_seconds
        return {
            self._broker_of(queue)
            for queue, lease in self._leases.items()
            if lease.until <= until
            or queue in self._paused
            or queue in self._late_unlocks
            or self._connection(self._broker_of(queue)) != lease.connection
        }

    def _note_connections(self) -> None:
        """Note the connections to brokers: which have returned, or are new."""
        for address in self._instance.routes.addresses(masters_only=True):
            if (broker := self._instance.routes.broker_at(address)) is not None:
                self._may_request(broker)
        self._connections_noted = True

    def _connection(self, broker: str) -> _Connection | None:
        """Return the connection to the master of *broker*; None: there is none now."""
        address = self._instance.routes.master(broker)
        number = self._instance.current_connection(address)
        return (address, number) if address is not None and number else None

    def _may_request(self, broker: str) -> bool:
        """Whether locks that are not held may be requested; False soon after *broker* returned.

        It has forgotten its locks, and their owners, whose handlers may still run, come first.
        """
        connection, now = self._connection(broker), self._clock()
        if connection is None:  # heartbeats connect again
            return not self._connections_noted and broker not in self._connections
        # One that appears after the first check may have been away, with its routes.
        first = NEVER_CONNECTED if self._connections_noted else connection
        last, until = self._connections.get(broker, (first, now))
        if connection != last:
            until = now + RETURN_SECONDS
        self._connections[broker] = connection, until
        return until <= now

    async def _repeat(self, broker: str, is_due: bool) -> None:
        """Repeat the unlocks that *broker* has not confirmed; renew its locks if that *is_due*."""
        try:
            async with self._turns.hold(broker):
                self._drop_ended()
                if is_due and (leased := self._renewable(broker)):
                    await self._request_locks(broker, leased)
                if left := self._at(broker, self._not_unlocked):
                    await self._request_unlocks(broker, left)
            paused = self._at(broker, self._paused)
            if granted := [queue for queue in paused if self._is_leased(queue)]:
                await self._resume(granted)
        finally:
            self._renewing.discard(broker)

    def _renewable(self, broker: str) -> list[MessageQueue]:
        """Return the queues of *broker* whose locks may be requested now.

        As long as the broker cannot have given them to others, that is at once.
        """
        leased = self._at(broker, self._leases)
        if self._may_request(broker):
            return leased
        since = self._clock() - BROKER_LOCK_SECONDS + self._lease_seconds
        return [queue for queue in leased if since < self._leases[queue].until]

    def _is_leased(self, queue: MessageQueue) -> bool:
        lease = self._leases.get(queue)
        return lease is not None and self._clock() < lease.until

    async def _resume(self, queues: list[MessageQueue]) -> None:
        """Hold paused *queues* again unless others made progress; what fails is tried again."""
        for queue in await self._owner.unchanged(queues):
            if queue in self._paused and self._is_leased(queue):
                self._paused.discard(queue)
                logger.info("queue_lock_regained", group=self._group, queue=str(queue))
                self._owner.on_resumed(queue)

    def _at(self, broker: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if self._broker_of(queue) == broker]

    async def _lock(self, broker: str, queues: list[MessageQueue]) -> None:
        async with self._turns.hold(broker):
            self._drop_ended()
            if not self._may_request(broker):
                queues = [queue for queue in queues if queue in self._leases]
            if not queues:
                return
            await self._request_locks(broker, queues)
            if not self._late_unlocks.keys().isdisjoint(queues):
                # Brokers execute requests in any order: an unlock before may have come second.
                await self._request_locks(broker, queues)

    async def _request_locks(self, broker: str, queues: list[MessageQueue]) -> None:
        before = {queue: self._leases.get(queue) for queue in queues}
        requested_at = self._clock()
        try:
            address = self._instance.routes.master_of(queues[0])
            command = await self._request(address, LockBatchMQ(), queues, self._late_locks)
            locked = read_body(command.body, LockBatchResponse).locked
        except RocketMQError as error:
            if broker not in self._failing:  # it is tried each second
                count = len(queues)
                logger.warning("queues_not_locked", broker=broker, queues=count, reason=str(error))
                self._failing.add(broker)
            if isinstance(error, NotConnectedError):  # away, as if a connection had been lost
                self._connections.setdefault(broker, (NEVER_CONNECTED, requested_at))
            return
        self._failing.discard(broker)
        granted = {each.queue() for each in locked}
        connection = address, self._instance.connection_number(address)
        self._connections.setdefault(broker, (connection, requested_at))
        self._drop_ended()  # a lease that expired meanwhile does not simply go on
        for queue, lease in before.items():
            if self._leases.get(queue) != lease:
                continue  # released or lost during the request
            if queue in granted:
                self._not_unlocked.pop(queue, None)
                self._leases[queue] = Lease(requested_at + self._lease_seconds, connection)
            elif lease is not None:
                self._end_taken(queue)

    async def _unlock(self, broker: str, queues: list[MessageQueue]) -> None:
        async with self._turns.hold(broker):
            self._forget(queues)  # granted meanwhile
            await self._request_unlocks(broker, queues)

    async def _unlock_at_last(self, broker: str, queues: list[MessageQueue]) -> None:
        # Sent in any case: a broker that is only silent executes it after the locks before.
        address = self._instance.routes.master(broker) or ""
        await anyio.sleep(self._instance.remoting.backoff_left(address))
        await self._unlock(broker, queues)
        if not self._late_locks.keys().isdisjoint(queues):
            # Brokers execute requests in any order: a lock before may have come second.
            await self._unlock(broker, queues)

    async def _request_unlocks(self, broker: str, queues: list[MessageQueue]) -> None:
        try:
            address = self._instance.routes.master_of(queues[0])
            await self._request(address, UnlockBatchMQ(), queues, self._late_unlocks)
        except RocketMQError as error:
            count = len(queues)
            logger.info("queues_not_unlocked", broker=broker, queues=count, reason=str(error))
        else:
            for queue in queues:
                # Else unlock again: the broker may execute that lock after this unlock.
                if queue not in self._late_locks:
                    self._not_unlocked.pop(queue, None)

    async def _request(
        self,
        address: str,
        header: RequestHeader,
        queues: list[MessageQueue],
        late: dict[MessageQueue, float],
    ) -> Command:
        """Send *header* for *queues*; note them in *late* if there is no response."""
        request = LockBatchRequest(
            consumer_group=self._group,
            client_id=self._instance.client_id,
            mq_set=[MessageQueueBody(**queue_fields(queue)) for queue in queues],
        )
        body = msgspec.json.encode(request)
        try:
            return await self._instance.remoting.request_checked(address, header, body)
        except (BrokerError, NotConnectedError):
            raise
        except BaseException:  # also when cancelled
            late.update(dict.fromkeys(queues, self._clock() + LATE_SECONDS))
            raise

    def _drop_ended(self) -> None:
        now = self._clock()
        ended = [queue for queue, lease in self._leases.items() if lease.until <= now]
        for queue in ended:
            if queue in self._paused:
                continue
            if self._lose(queue, "it was not renewed in time"):
                self._paused.add(queue)
            else:
                del self._leases[queue]

    def _drop_past(self) -> None:
        now = self._clock()
        for table in (self._not_unlocked, self._late_locks, self._late_unlocks):
            for queue in [queue for queue, until in table.items() if until <= now]:
                del table[queue]

    def _end_taken(self, queue: MessageQueue) -> None:
        del self._leases[queue]
        if queue in self._paused:
            self._paused.discard(queue)
        else:
            self._lose(queue, "the broker gave it to another member")
        self._owner.on_taken(queue)

    def _lose(self, queue: MessageQueue, reason: str) -> bool:
        logger.warning("queue_lock_lost", group=self._group, queue=str(queue), reason=reason)
        return self._owner.on_lost(queue)

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        """Drop leases; until they are unlocked, also if that is cancelled, brokers keep them."""
        until = self._clock() + BROKER_LOCK_SECONDS
        for queue in queues:
            self._leases.pop(queue, None)
            self._paused.discard(queue)
            self._not_unlocked[queue] = until

    async def _at_each_broker(self, queues: Iterable[MessageQueue], act: _RequestAtBroker) -> None:
        """Call *act* with the queues of each broker, concurrently."""
        by_broker: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            by_broker[self._broker_of(queue)].append(queue)
        await gather_limited(lambda broker: act(broker, by_broker[broker]), by_broker)


class DeferredUnlocks:
    """Unlocks revoked queues, each when the last handler of any assignment of it has ended.

    :param assigning: held while queues are assigned and revoked
    """

    def __init__(
        self,
        locks: QueueLocks,
        tasks: BackgroundTasks,
        table: Mapping[MessageQueue, DispatchQueue],
        assigning: anyio.Lock,
    ) -> None:
        self._locks = locks
        self._tasks = tasks
        self._table = table
        self._assigning = assigning
        self._pending: set[MessageQueue] = set()  # revoked, and handlers still run

    async def release(self, released: Iterable[DispatchQueue]) -> None:
        """Unlock queues without running handlers now, the others later."""
        idle: list[MessageQueue] = []
        for assigned in released:
            queue, in_flight = assigned.queue, assigned.in_flight
            if not in_flight.running:
                idle.append(queue)
            elif queue not in self._pending:
                self._pending.add(queue)
                self._tasks.spawn(self._release_later, queue, in_flight, name=f"unlock-{queue}")
        await self._locks.release(idle)

    async def release_unwanted(self, may_have: Callable[[MessageQueue], bool]) -> None:
        """Unlock queues that this member is not to have, and that may have been locked too late."""
        used = self._used()
        unanswered = [queue for queue in self._locks.unanswered() if queue not in used]
        if unwanted := [queue for queue in unanswered if not may_have(queue)]:
            await self._locks.release(unwanted)

    async def release_rest(self, *, ended: bool) -> None:
        """Unlock all queues before the consumer closes; used ones if all handlers have *ended*."""
        await self._locks.release_rest(self._used(), ended=ended)

    def _used(self) -> set[MessageQueue]:
        return {*self._table, *self._pending}

    async def _release_later(self, queue: MessageQueue, in_flight: InFlight) -> None:
        while queue in self._pending:
            await in_flight.wait_until_idle()
            # Not while the queue is being assigned again: it would lose its new lock.
            async with self._assigning:
                if in_flight.running:
                    continue  # assigned and revoked once more in the meantime
                if queue not in self._table:
                    await self._locks.release([queue])
                self._pending.discard(queue)
