"""LitePullConsumer: the application polls messages at its own pace."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from threading import get_ident
from time import monotonic
from typing import Final, Generic, Self

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LitePullConfig
from rocketmq_aio.config.validation import checked_count, checked_queue, checked_seconds
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.hooks import checked_consume_hooks
from rocketmq_aio.consumer.common.listeners import (
    AssignmentListener,
    TopicQueuesListener,
    check_listener,
    checked_listeners,
)
from rocketmq_aio.consumer.group.member import GroupMember
from rocketmq_aio.consumer.lite_pull.lite_pull_engine import LitePullEngine
from rocketmq_aio.consumer.lite_pull.polled_queue import PolledQueue
from rocketmq_aio.consumer.offsets.remote_store import check_offset
from rocketmq_aio.errors import ConfigError, RocketMQError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.hook_runner import AnyConsumeHook
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, MessageSelector

DEFAULT_MESSAGES: Final = 1000  # of one poll that does not say how many it wants


class LitePullConsumer(GroupMember[LitePullEngine], Generic[V]):
    """Reads topics, alone or as a member of a group, with `poll` or ``async for``.

    Either `subscribe` to topics, whose queues are allocated among the group, or `assign` queues
    yourself.  Each poll marks the previous batch as processed, and so does leaving ``async with``
    at its end in the task that polled; with ``auto_commit`` processed messages are committed every
    few seconds.  One task polls; other tasks may commit, seek and pause at any time, and never
    wait for a poll.

    :param group: name of the consumer group
    :param namesrv: name server addresses; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param config: settings; default ``LitePullConfig()``
    :param hooks: `ConsumeHook` objects, called when messages are delivered
    :param on_assigned: called with assigned queues; a plain or async function
    :param on_revoked: called with queues to be revoked, while they can still be committed
    :raises ConfigError: an argument is invalid
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
        config: LitePullConfig[V] | None = None,
        hooks: Iterable[AnyConsumeHook] = (),
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client)
        group = self._group
        if config is not None and not isinstance(config, LitePullConfig):
            raise ConfigError("config", config, "expected a LitePullConfig")
        context = ConsumerContext(
            self._instance, group, config or LitePullConfig(), on_failed=self.on_failed
        )
        self._engine = LitePullEngine(context, checked_listeners(on_assigned, on_revoked))
        self._ready = self._engine.ready
        self._hooks = checked_consume_hooks(self._bind_hooks(hooks))
        self._hooked = bool(self._hooks)
        self._reader: asyncio.Task[object] | None = None  # that polled last

    # --- subscriptions --------------------------------------------------------------------------

    async def subscribe(
        self,
        topic: str,
        selector: str | MessageSelector = "*",
        *,
        on_queues_changed: TopicQueuesListener | None = None,
    ) -> None:
        """Read *topic* as a member of the group; may be called before `start` and again later.

        :param selector: a tag expression such as ``"new || paid"``, or `MessageSelector.by_sql`
        :param on_queues_changed: called with (topic, queues) when the topic's queues change
        :raises ConfigError: the topic or expression is wrong, or `assign` is in use
        :raises SubscriptionError: the broker does not accept the SQL expression
        """
        self._check_usable()
        topic = check_topic(topic)
        check_listener("on_queues_changed", on_queues_changed, "topic", "queues")
        await self._engine.subscribe(topic, selector)
        if on_queues_changed is not None:
            await self._engine.listen(topic, on_queues_changed)

    async def assign(
        self,
        queues: Collection[MessageQueue],
        selector: str | MessageSelector | Mapping[str, str | MessageSelector] = "*",
    ) -> None:
        """Read exactly *queues*, also if other consumers do; replaces the last assignment.

        Called in `on_assigned` or `on_revoked`, it returns at once, and applies after the listener.

        :param selector: that of all topics, as in `subscribe`; or those of some in a mapping, and
            the others are read whole
        :raises ConfigError: no queue is given, a selector is wrong, or `subscribe` is in use
        :raises SubscriptionError: a broker does not accept the SQL expression
        """
        self._check_usable()
        await self._engine.assign(queues, selector)

    async def listen_queues(self, topic: str, listener: TopicQueuesListener) -> None:
        """Call *listener* with (topic, queues) when the queues of *topic* change.

        :param listener: a plain or async function; *queues* is the new list
        :raises ConfigError: *topic* or *listener* is invalid
        """
        self._check_usable()
        topic = check_topic(topic)
        check_listener("listener", listener, "topic", "queues")
        await self._engine.listen(topic, listener)

    # --- messages -------------------------------------------------------------------------------

    async def poll(
        self, timeout_seconds: float = 5.0, max_messages: int | None = None
    ) -> list[MessageExt[V]]:
        """Return messages, waiting up to *timeout_seconds* for the first one.

        Messages of one queue are in order.  Each poll marks the previous batch as processed.
        Cancelling a poll loses nothing.

        :param max_messages: maximum number of messages; default 1000
        :return: ``[]`` when no message arrived in time
        :raises OffsetIllegalError: a queue's offset does not exist and ``offset_illegal="error"``
        :raises PermissionDeniedError: no queue can be started: the group is new, and the account
            may not query the ends of queues; the consumer keeps trying, so you may poll again
        :raises AuthError: likewise, because the brokers do not know the account (any more)
        :raises ClosedError: the consumer was closed
        """
        if self._thread != get_ident() or not self._is_running():
            self._check_running()
        limit = DEFAULT_MESSAGES if max_messages is None else max_messages
        checked_count("max_messages", limit)
        deadline = monotonic() + checked_seconds("timeout_seconds", timeout_seconds, least=0)
        ready = self._ready
        ready.mark_processed()
        self._reader = asyncio.current_task()
        while True:
            if (failure := ready.failure()) is not None:
                raise failure.with_traceback(None)  # else each poll would lengthen it
            if messages := ready.take(limit):
                return self._with_hooks(messages) if self._hooked else messages
            if (error := self._start_error()) is not None:
                raise error
            left = deadline - monotonic()
            if left <= 0:
                await asyncio.sleep(0)  # polling without a timeout must not starve the pulls
                return self._with_hooks(ready.take(limit)) if self._running is not None else []
            await ready.wait(left)
            if self._running is None:
                self._check_running()

    def __aiter__(self) -> Self:
        self._reader = asyncio.current_task()
        return self

    async def __anext__(self) -> MessageExt[V]:
        """Return the next message, and mark the previous one as processed.

        Iteration ends when the consumer is closed.  Raises the errors of `poll`.
        """
        if self._thread != get_ident() or not self._is_running():
            self._end_or_raise()
        ready = self._ready
        ready.mark_processed()
        while True:
            message = ready.take_one()
            if message is not None:
                if self._hooked:
                    self._hooks.run_for(self._group, "poll", (message,))
                return message
            if (failure := ready.failure() or self._start_error()) is not None:
                raise failure.with_traceback(None)
            await ready.wait(None)
            if self._running is None:
                self._end_or_raise()

    # --- progress -------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[MessageQueue, int] | Collection[MessageQueue] | None = None
    ) -> None:
        """Commit, and return when the offsets are stored.

        Brokers store any offset; who begins at one that does not exist continues as the setting
        ``offset_illegal`` says.

        :param offsets: next offset to consume per queue; or queues, to commit all messages
            returned from them; None commits all returned messages
        :raises CommitError: some queues were not committed; ``lost`` has their errors
        """
        if not self._engine.revoking:  # on_revoked may commit while the consumer closes
            self._check_running()
        await self._engine.manual_commits.commit(offsets)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset; None when nothing was ever committed.

        :raises RocketMQError: the broker cannot be reached
        """
        self._check_running()
        await self._engine.know_route(checked_queue(queue).topic)
        return await self._engine.store.read(queue)

    async def position(self, queue: MessageQueue) -> int:
        """Return the position: the next poll returns the message at this offset or a later one.

        :raises ConfigError: the queue is not assigned
        :raises RocketMQError: the start offset of the queue is not known yet
        """
        await self._engine.wait_until_started(self._assigned(queue))
        return self._assigned(queue).delivered

    async def lag(self) -> dict[MessageQueue, int]:
        """Return how many messages of each assigned queue were not returned yet."""
        self._check_running()
        return await self._engine.lag()

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at *offset*: drop cached messages of the queue, and cancel its running pull.

        :raises ConfigError: the queue is not assigned, or does not have the offset
        """
        check_offset(offset)
        self._assigned(queue)
        await self._engine.check_in_range(queue, offset)
        self._assigned(queue).seek(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the first message that is still stored."""
        await self._seek_to(queue, "earliest")

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on after the last message."""
        await self._seek_to(queue, "latest")

    async def offset_for_time(self, queue: MessageQueue, when: datetime) -> int:
        """Return the first offset stored at or after *when*, which needs a time zone.

        If all messages are older, this is the end of the queue; brokers before 5.0 return the
        offset of the last message.  In a logical queue that has moved it can be too low (5.5.0).
        """
        self._check_running()
        if not isinstance(when, datetime) or when.utcoffset() is None:
            raise ConfigError("when", when, "expected a datetime with a time zone")
        await self._engine.know_route(checked_queue(queue).topic)
        return await self._engine.starts.offset_of(queue, when)

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of *topic*, fetched from a name server.

        :raises RouteNotFoundError: there is no such topic
        """
        self._check_running()
        route = await self._instance.routes.fetch(check_topic(topic))
        return list(route.subscribe_queues)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of *queues* until `resume`; cached messages are kept.

        :raises ConfigError: one is not assigned
        """
        for assigned in self._all_assigned(queues):
            assigned.paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of *queues* again.

        :raises ConfigError: one is not assigned
        """
        for assigned in self._all_assigned(queues):
            assigned.paused = False
            assigned.wake_puller()
            self._ready.add(assigned)

    async def _shut(self) -> None:
        # Leaving `async with` in one task does not mark the batch of another task as processed.
        alone = self._reader is None or self._reader is self._left_by
        await self._engine.shut(last_batch_done=self._left_normally and alone)

    async def _seek_to(self, queue: MessageQueue, start: str) -> None:
        self._assigned(queue)
        offset = await self._engine.starts.offset_of(queue, start)
        self._assigned(queue).seek(offset)

    def _with_hooks(self, messages: list[MessageExt[V]]) -> list[MessageExt[V]]:
        if self._hooked and messages:
            self._hooks.run_for(self._group, "poll", messages)
        return messages

    def _start_error(self) -> RocketMQError | None:
        error = self._ready.start_error()
        if error is None or any(each.started.is_set() for each in self._engine.table.values()):
            return None  # an error of one queue does not stop reading the others
        return error

    def _end_or_raise(self) -> None:
        if self._is_closed():
            raise StopAsyncIteration
        self._check_running()

    def _assigned(self, queue: MessageQueue) -> PolledQueue:
        self._check_running()
        assigned = self._engine.table.get(checked_queue(queue))
        if assigned is None or assigned.dropped:
            raise ConfigError("queue", queue, "it is not assigned to this consumer (any more)")
        return assigned

    def _all_assigned(self, queues: Iterable[MessageQueue]) -> list[PolledQueue]:
        if not isinstance(queues, Iterable):
            raise ConfigError("queues", queues, "expected several MessageQueue")
        return [self._assigned(queue) for queue in queues]
