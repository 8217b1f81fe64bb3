"""Pull loop of a queue: long polls, flow control, filters, and recovery from failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import anyio

from rocketmq_aio.config.consumer import ConsumerConfig
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import (
    MessageUnreadable,
    OffsetCorrected,
    PullFailed,
    QueueHeld,
)
from rocketmq_aio.consumer.pull_loop.flow_control import FlowControl
from rocketmq_aio.consumer.pull_loop.log_check import LogCheck
from rocketmq_aio.consumer.pull_loop.log_comparison import LogComparison
from rocketmq_aio.consumer.pull_loop.message_decoder import MessageDecoder
from rocketmq_aio.consumer.pull_loop.pull_request import (
    PullRequest,
    is_reset,
    read_response,
    select_messages,
)
from rocketmq_aio.consumer.pull_loop.queue_state import UNKNOWN, QueueState, Start
from rocketmq_aio.errors import (
    NO_RESPONSE,
    AuthError,
    BrokerError,
    BusyError,
    CodecError,
    NotConnectedError,
    PermissionDeniedError,
    RocketMQError,
    SubscriptionError,
    with_notes,
)
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.protocol.codes import MASTER_ID, V5_0_0, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.static_topics import is_logical
from rocketmq_aio.protocol.subscription import Subscription
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

Q = TypeVar("Q", bound=QueueState)
Q_contra = TypeVar("Q_contra", bound=QueueState, contravariant=True)

LEAST_EMPTY_SECONDS: Final = 0.1  # a response without progress sooner than this is slowed down
BUSY_SECONDS: Final = 0.02
LONGEST_BUSY_SECONDS: Final = 0.5
HEARTBEAT_SECONDS: Final = 1.0  # between heartbeats after failed pulls of any queue
LONGEST_PAUSE_SECONDS: Final = 2.0
START_PAUSE_SECONDS: Final = 1.0
CUT_OFF_SECONDS: Final = 10.0  # without a response; brokers may have dropped this member
DENIED: Final = (AuthError, PermissionDeniedError)


class StartOffsets(Protocol):
    """Determines where pulling starts; see `StartPositions`."""

    async def find(self, queue: MessageQueue) -> Start: ...
    async def offset_of(self, queue: MessageQueue, start: str) -> int: ...


class PullOwner(Protocol[Q_contra]):
    """Called by a `Puller` about its queues; see `GroupEngine`."""

    def on_pulled(self, assigned: Q_contra, messages: int, passed: int) -> None: ...
    def on_started(self, assigned: Q_contra, *, new: bool) -> None: ...
    async def on_corrected(self, assigned: Q_contra) -> None: ...
    def on_cut_off(self, assigned: Q_contra) -> None: ...
    def on_recovered(self, assigned: Q_contra) -> None: ...
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...


class Puller(Generic[Q]):
    """Keeps one pull running for every assigned queue that has room.

    :param lite: use the request code that brokers from 5.0 have for lite pull
    """

    def __init__(
        self,
        context: ConsumerContext[ConsumerConfig],
        owner: PullOwner[Q],
        starts: StartOffsets,
        flow_control: FlowControl,
        *,
        on_messages: Callable[[Q], None],
        lite: bool = False,
        interval_seconds: float = 0.0,
    ) -> None:
        self._context = context
        self._instance = context.instance
        self._config = context.config
        self._owner = owner
        self._starts = starts
        self._flow_control = flow_control
        self._decoder = MessageDecoder(context.instance)
        self._log_check = LogCheck(
            context.instance, context.group, lite=lite, on_reset=self._note_reset
        )
        self._logs = LogComparison(
            context.instance,
            self._log_check,
            correct=self._correct,
            on_recovered=owner.on_recovered,
        )
        self._on_messages = on_messages
        self._lite = lite
        self._interval = interval_seconds
        self._last_heartbeat = float("-inf")

    def close(self) -> None:
        """Release the threads that decode large responses."""
        self._decoder.close()

    async def run(self, assigned: Q, wait_seconds: float = 0.0) -> None:
        """Pull until the queue is revoked; a seek abandons the current pull and starts another.

        :param wait_seconds: time for the previous owner of the queue to commit
        """
        if wait_seconds:
            await anyio.sleep(wait_seconds)
        backoff = Backoff(longest=LONGEST_PAUSE_SECONDS)
        busy = Backoff(BUSY_SECONDS, LONGEST_BUSY_SECONDS)
        while not assigned.dropped:
            with anyio.CancelScope() as assigned.scope:
                if assigned.next_offset == UNKNOWN:
                    await self._find_start(assigned)
                while not assigned.dropped:
                    if not self._flow_control.may_pull(assigned):
                        await self._flow_control.pause(assigned)
                        self._note_connections(assigned)
                        continue
                    try:
                        await self._pull(assigned)
                    except RocketMQError as error:
                        await self._recover(assigned, error, backoff, busy)
                        continue
                    self._note_response(assigned)
                    backoff.failures = busy.failures = 0

    def _note_response(self, assigned: Q) -> None:
        """Note the end of an outage; with a slave only, which has no commits, it goes on."""
        if assigned.failing_since is None:
            return
        master = self._instance.routes.named_master(assigned.queue)
        if master is None or not self._instance.remoting.is_connected(master):
            assigned.failing_since = asyncio.get_running_loop().time()
            return
        assigned.failing_since = None
        self._owner.on_recovered(assigned)

    def _note_no_response(self, assigned: Q) -> None:
        now = asyncio.get_running_loop().time()
        if assigned.failing_since is None:
            assigned.failing_since = now
        elif now - assigned.failing_since > CUT_OFF_SECONDS:
            self._owner.on_cut_off(assigned)

    def _note_connections(self, assigned: Q) -> None:
        """Note an outage of the broker of a queue that is not pulled, as failing pulls do."""
        replicas = self._instance.routes.replicas_of(assigned.queue).values()
        if any(map(self._instance.remoting.is_connected, replicas)):
            self._note_response(assigned)
        else:
            self._note_no_response(assigned)

    async def _find_start(self, assigned: Q) -> None:
        while not assigned.started.is_set():
            generation = assigned.generation
            try:
                start = await self._starts.find(assigned.queue)
            except RocketMQError as error:
                self._note_unknown_start(assigned, error)
                await anyio.sleep(START_PAUSE_SECONDS)
                continue
            if assigned.generation == generation:
                assigned.begin_at(start)
                self._owner.on_started(assigned, new=start.is_new)

    def _note_unknown_start(self, assigned: Q, error: RocketMQError) -> None:
        if assigned.start_error is None:
            self._note_failure(assigned, error, "start_unknown")
        assigned.start_error = error
        if isinstance(error, DENIED):  # waiting does not help: wake the callers
            assigned.fail_start()
            self._on_messages(assigned)

    async def _pull(self, assigned: Q) -> None:
        routes, loop = self._instance.routes, asyncio.get_running_loop()
        master = routes.replicas_of(assigned.queue).get(MASTER_ID)
        await self._logs.before_pull(assigned, master, loop.time())
        replicas = routes.replicas_of(assigned.queue)
        assigned.last_pull = started = loop.time()
        subscription = self._context.subscriptions.get(assigned.queue.topic)
        if subscription is None or assigned.failure is not None:
            await anyio.sleep(LEAST_EMPTY_SECONDS)
            return
        generation, offset = assigned.generation, assigned.next_offset
        address = replicas.get(assigned.broker_id) or self._other_replica(assigned)
        request = self._request(assigned, subscription, address)
        command = await request.send(address, offset)
        if assigned.generation != generation:  # there was a seek in between
            self._note_reset(assigned.queue, command)
            return
        self._logs.after_pull(assigned, address, loop.time() - started)
        if command.code == ResponseCode.SUCCESS:
            await self._found(assigned, subscription, command, address, offset)
        elif command.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self._nothing_found(assigned, subscription, command, address, offset)
        elif command.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._moved(assigned, command, address, offset)
        else:
            raise broker_error(command, address)
        pause = self._interval
        if assigned.next_offset == offset or command.code == ResponseCode.PULL_OFFSET_MOVED:
            # A broker that does not hold requests must not be flooded.
            pause = max(pause, LEAST_EMPTY_SECONDS - (loop.time() - started))
        if pause > 0:
            await anyio.sleep(pause)

    def _other_replica(self, assigned: Q) -> str:
        """Return the address of a replica instead of the suggested one, which no route names."""
        replica = self._instance.routes.replica_of(assigned.queue, assigned.broker_id)
        if replica is None:
            raise NotConnectedError(assigned.queue.broker_name, "no route names this broker")
        return replica[0]

    def _request(self, assigned: Q, subscription: Subscription, address: str) -> PullRequest:
        """Return the prepared request, made anew when the expression changes."""
        versions = self._instance.heartbeats.broker_versions
        # Brokers from 5.0 have a request code for lite pull; older ones do not know it.
        own_code = self._lite and versions.get(address, 0) >= V5_0_0
        known = assigned.pull_request
        if known is not None and known.subscription is subscription and known.own_code == own_code:
            return known
        assigned.pull_request = request = self._new_request(
            assigned.queue,
            subscription,
            self._config.pull_batch_size,
            own_code=own_code,
            wait_seconds=self._config.long_poll_seconds,
        )
        return request

    def _new_request(
        self,
        queue: MessageQueue,
        subscription: Subscription,
        max_messages: int,
        *,
        own_code: bool,
        wait_seconds: float = 0.0,
    ) -> PullRequest:
        return PullRequest(
            self._instance,
            self._context.group,
            queue,
            subscription,
            max_messages,
            lite=self._lite,
            own_code=own_code,
            wait_seconds=wait_seconds,
            on_late=partial(self._note_reset, queue),
        )

    def _note_reset(self, queue: MessageQueue, command: Command) -> None:
        """Follow a reset if *command*, the response to any pull, has one: it is sent only once.

        After an abandoned pull the queue may have been revoked and assigned again since.
        """
        if command.code != ResponseCode.PULL_OFFSET_MOVED or not is_reset(command.remark):
            return
        try:
            offset = read_response(command).next_begin_offset
        except CodecError as error:
            logger.warning("reset_unreadable", queue=str(queue), reason=str(error))
            return
        reset = self._owner.reset_offsets
        self._context.tasks.spawn(reset, queue.topic, {queue: offset}, name=f"reset-{queue}")

    def _nothing_found(
        self, assigned: Q, subscription: Subscription, command: Command, address: str, offset: int
    ) -> None:
        response = read_response(command)
        next_offset, end = response.next_begin_offset, response.max_offset
        if _sees_all(assigned, subscription, address):
            next_offset = assigned.tail_check.read_until((), offset, next_offset, end)
        if next_offset > offset:
            assigned.advance(next_offset)
            self._owner.on_pulled(assigned, 0, next_offset - offset)
        elif (
            command.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            and next_offset == response.next_begin_offset
            and address == assigned.master
        ):
            # A slave that may not be read responds so: it is no longer the master.
            self._instance.routes.invalidate(assigned.queue.topic)
        assigned.broker_id = response.suggest_which_broker_id

    async def _found(
        self, assigned: Q, subscription: Subscription, command: Command, address: str, offset: int
    ) -> None:
        response = read_response(command)
        generation = assigned.generation
        await self._logs.verify(assigned, response, address)
        position = assigned.generation, assigned.next_offset
        if position != (generation, offset) or assigned.failure is not None:
            return
        assigned.broker_id = response.suggest_which_broker_id
        decoded = await self._decoder.decode(command.body, assigned.queue)
        if assigned.generation != generation:
            return  # there was a seek in between
        messages, next_offset, fault = select_messages(
            decoded, response.offset_delta or 0, response.next_begin_offset, offset, subscription
        )
        if _sees_all(assigned, subscription, address):
            end = response.max_offset
            until = assigned.tail_check.read_until(messages, offset, next_offset, end)
            if until < next_offset:
                messages = [each for each in messages if each.queue_offset < until]
                next_offset, fault = until, None
        self._take(assigned, messages, offset, next_offset)
        if fault is not None and next_offset == offset:
            # With messages before it, the next pull starts with it and reports it.
            await self._unreadable(assigned, subscription, address, offset, fault)

    def _take(self, assigned: Q, messages: list[MessageExt], offset: int, next_offset: int) -> None:
        """Cache *messages*, all that match from *offset* to *next_offset*."""
        if messages:
            last = messages[-1]
            assigned.last_message = last.queue_offset, last.head
            assigned.filtered_from = last.queue_offset + 1
            messages = self._prepare(messages)
            assigned.put(messages)
        assigned.advance(next_offset)
        self._owner.on_pulled(assigned, len(messages), next_offset - offset)
        if messages:
            self._on_messages(assigned)

    def _prepare(self, messages: list[MessageExt]) -> list[MessageExt]:
        """Run the filter hooks and set the codec."""
        if filters := self._context.filters:
            messages = filters.filter(messages)
        if (codec := self._config.codec) is not None:
            for message in messages:
                message.codec = codec
        return messages

    async def _unreadable(
        self, assigned: Q, subscription: Subscription, address: str, offset: int, fault: CodecError
    ) -> None:
        """Report the undecodable message from *offset* on; skip it if the settings say so."""
        if self._instance.routes.named_master(assigned.queue) not in (None, address):
            assigned.broker_id = MASTER_ID  # it may be damaged at this slave only
            self._note_failure(assigned, fault)
            return
        # A filter may have left out messages before it, and its record may not tell its offset.
        own_code = self._request(assigned, subscription, address).own_code
        queue, generation = assigned.queue, assigned.generation
        request = self._new_request(queue, subscription, 1, own_code=own_code)
        command = await request.send(address, offset)
        self._note_reset(queue, command)
        if assigned.generation != generation:
            return  # there was a seek in between
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        response = read_response(command)
        next_offset = max(offset + 1, response.next_begin_offset)
        messages, _, again = select_messages(
            self._instance.remoting.decode(command.body, queue),
            response.offset_delta or 0,
            next_offset,
            offset,
            subscription,
        )
        if again is None:  # it was damaged on its way here
            self._note_failure(assigned, fault)
            self._take(assigned, messages, offset, next_offset)
            return
        policy = self._config.unreadable
        event = MessageUnreadable(
            queue=queue, offset=next_offset - 1, reason=str(fault), policy=policy
        )
        self._context.publish(event)
        if policy == "hold":
            raise fault
        logger.warning("message_skipped", queue=str(queue), event_value=repr(event))
        assigned.advance(next_offset)

    async def _moved(self, assigned: Q, command: Command, address: str, requested: int) -> None:
        """The offset does not exist: go on as the policy says, and publish an event."""
        response = read_response(command)
        corrected = response.next_begin_offset
        reset = is_reset(command.remark)
        if not reset and assigned.broker_id != MASTER_ID:
            # A replica may lag behind the master: its end of the queue may be too early.
            assigned.broker_id = MASTER_ID
            return
        if not reset and address != assigned.master:  # a slave, and no route names a master
            assigned.replica_ended |= corrected < requested
            raise broker_error(command, address)
        if corrected < requested and not reset:
            # The log ends before the offset: it lost messages, or the topic was created again, and
            # the broker's correction may be behind messages that were stored since.
            generation = assigned.generation
            differs_at = await self._logs.first_difference(assigned, address)
            if assigned.generation != generation:
                return
            if differs_at is not None:
                # Not the broker's correction: old brokers of 4.x name 0 if the log begins there.
                filtered = assigned.was_filtered(differs_at)
                corrected = min(response.max_offset, differs_at) if filtered else differs_at
        await self._correct(assigned, broker_error(command, address), requested, corrected)

    async def _correct(
        self, assigned: Q, error: BrokerError, requested: int, corrected: int
    ) -> bool:
        """Go on at *corrected* or where the policy says; return False if the position changed."""
        reset = is_reset(error.remark)
        policy = "broker" if reset else self._config.offset_illegal
        if policy == "error":
            self._hold(assigned, error, requested, corrected)
            return True
        generation = assigned.generation
        # Before the earliest message the broker returns its offset, which an account without Get
        # cannot query.
        if policy == "latest" or (policy == "earliest" and corrected <= requested):
            try:
                corrected = await self._starts.offset_of(assigned.queue, policy)
            except PermissionDeniedError:  # an account that may pull is enough
                corrected = await self._log_check.end_of(assigned.queue, error.address)
        if assigned.generation != generation:
            return False
        dropped = 0
        is_back = reset or corrected < requested
        if is_back:
            assigned.forget_log()  # it may have another one at its offset
            dropped = assigned.restart(corrected) if reset else assigned.step_back(corrected)
        else:  # messages were deleted before they were pulled; the cached ones are valid
            assigned.advance(corrected)
        event = OffsetCorrected(
            queue=assigned.queue,
            requested=requested,
            corrected=assigned.next_offset,
            policy=policy,
            remark=error.remark or "",
            dropped=dropped,
        )
        self._context.warn("offset_corrected", event, queue=str(assigned.queue))
        if is_back:
            await self._owner.on_corrected(assigned)
        return True

    def _hold(self, assigned: Q, error: BrokerError, requested: int, suggested: int) -> None:
        """Stop pulling until the application seeks."""
        assigned.failure = error
        queue, remark = assigned.queue, error.remark or ""
        event = QueueHeld(queue=queue, requested=requested, suggested=suggested, remark=remark)
        self._context.warn("queue_held", event, queue=str(queue))
        self._on_messages(assigned)  # wakes a poll, which raises it

    async def _recover(
        self, assigned: Q, error: RocketMQError, backoff: Backoff, busy: Backoff
    ) -> None:
        # Only a response suggests another replica: else pulls would stay at one that fails.
        assigned.broker_id = MASTER_ID
        if isinstance(error, BusyError):
            await anyio.sleep(busy.next_pause())
            return
        if not isinstance(error, NO_RESPONSE):
            assigned.failing_since = None
        self._note_no_response(assigned)
        if not backoff.failures:
            self._note_failure(assigned, error)
        pause = backoff.next_pause()
        if isinstance(error, SubscriptionError):
            await self._send_heartbeat()
        elif isinstance(error, BrokerError) and error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
            self._instance.routes.invalidate(assigned.queue.topic)
        elif isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
            assigned.forget_master()  # the topic may be created again, with another log
        await anyio.sleep(pause)

    def _note_failure(self, assigned: Q, error: RocketMQError, name: str = "pull_failed") -> None:
        reason = with_notes(error)
        logger.warning(name, queue=str(assigned.queue), reason=reason)
        self._context.publish(PullFailed(queue=assigned.queue, reason=reason))

    async def _send_heartbeat(self) -> None:
        """Send heartbeats: a restarted broker does not know the group."""
        now = asyncio.get_running_loop().time()
        if now - self._last_heartbeat >= HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            await self._instance.heartbeats.send_all(self._context.group)


def _sees_all(assigned: QueueState, subscription: Subscription, address: str) -> bool:
    """Whether the master at *address* returns every message; a static topic skips offsets."""
    is_filtered = subscription.is_sql or subscription.tags
    return not is_filtered and address == assigned.master and not is_logical(assigned.queue)
