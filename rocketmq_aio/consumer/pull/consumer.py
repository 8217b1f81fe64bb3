"""PullConsumer: reads any queue at any offset; the application keeps the offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import anyio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.validation import checked_count, checked_queue, checked_seconds
from rocketmq_aio.consumer.common.redelivery import MAX_RECONSUME_TIMES, SendBack, check_delay_level
from rocketmq_aio.consumer.offsets.remote_store import RemoteOffsetStore, check_offset
from rocketmq_aio.consumer.pull.raw_pulls import RawPulls
from rocketmq_aio.consumer.pull.result import PullResult, PullStatus, RawPull, pull_result
from rocketmq_aio.consumer.pull_loop.message_decoder import MessageDecoder
from rocketmq_aio.errors import ClosedError, ConfigError
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.timestamps import millis_of
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.subscription import subscription
from rocketmq_aio.remoting.keyed_lock import KeyedLock

MAX_INT: Final = 2**31 - 1


class PullConsumer(ClientBase):
    """Reads queues by offset, for tools and frameworks that keep their own progress.

    It is not a member of its group: brokers do not list it, it gets no queues assigned, and it
    does not disturb the members.  The group determines the offsets of `commit` and `committed`,
    the access rights and the flow control.  Several tasks may use it concurrently.

    It takes no hooks, and `MessageTrace` does not record it.  `RPCHook` objects of the
    `ClientConfig` see its requests.

    :param group: name of the consumer group
    :param namesrv: name server addresses; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :raises ConfigError: an argument is invalid
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client)
        group = self._group
        self._store = RemoteOffsetStore(self._instance.broker, group)
        self._committing = KeyedLock[MessageQueue]()
        self._send_back = SendBack(self._instance, group, max_reconsume_times=MAX_RECONSUME_TIMES)
        self._decoder = MessageDecoder(self._instance)
        self._pulls = RawPulls(self._instance, group, lite=False)
        self.topics, self.on_route_changed = self._pulls.topics, self._pulls.on_route_changed
        self._running_pulls: set[anyio.CancelScope] = set()

    # --- messages -------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        selector: str | MessageSelector = "*",
        *,
        wait_seconds: float = 0.0,
        max_bytes: int | None = None,
    ) -> PullResult:
        """Return messages of *queue* from *offset* on.

        An offset that does not exist is a result, not an error; it is never corrected silently.

        :param max_messages: maximum number; brokers have another limit, 32 by default
        :param selector: a tag expression such as ``"new || paid"``, or `MessageSelector.by_sql`
        :param wait_seconds: how long the broker waits for a first message when the queue ends at
            *offset*; it checks every 5 s only, so NO_NEW may be returned that much later
        :param max_bytes: maximum bytes of messages, a hint that 5.x brokers may ignore (5.5.0
            brokers were seen to)
        :raises ConfigError: an argument is invalid
        :raises SubscriptionError: the broker does not accept the SQL expression
        :raises CodecError: the message at *offset* cannot be decoded
        :raises RouteNotFoundError: there is no such topic
        :raises RocketMQError: the broker cannot be reached, or returned an error
        """
        raw = await self.pull_raw(
            queue, offset, max_messages, selector, wait_seconds=wait_seconds, max_bytes=max_bytes
        )
        decoded = None
        if raw.status is PullStatus.FOUND:
            decoded = await self._decoder.decode(raw.body, queue)
        return pull_result(raw, decoded, offset, subscription(queue.topic, selector, 0))

    async def pull_raw(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        selector: str | MessageSelector = "*",
        *,
        wait_seconds: float = 0.0,
        max_bytes: int | None = None,
    ) -> RawPull:
        """Return the broker's response undecoded; parameters and errors are those of `pull`."""
        wanted = subscription(checked_queue(queue).topic, selector, 0)
        check_offset(offset)
        checked_count("max_messages", max_messages, most=MAX_INT)
        checked_seconds("wait_seconds", wait_seconds, least=0)
        if max_bytes is not None:
            checked_count("max_bytes", max_bytes, most=MAX_INT)
        self._check_running()
        with anyio.CancelScope() as scope:
            self._running_pulls.add(scope)
            try:
                return await self._pulls.pull(
                    queue,
                    offset,
                    max_messages,
                    wanted,
                    suggested=True,
                    wait_seconds=wait_seconds,
                    max_bytes=max_bytes,
                )
            finally:
                self._running_pulls.discard(scope)
        self._check_running()
        raise ClosedError(f"{self!r} was closed during a pull")

    # --- offsets --------------------------------------------------------------------------------

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit *offset*, the next one to consume, for the group; return when it is confirmed.

        It may go backwards.  Running members of the group do not read it.  Brokers from 5.0
        return an error for a group that does not exist; a pull creates it if they may.  They store
        any offset; a pull from one that does not exist has the status ``OFFSET_ILLEGAL``.

        :raises CommitError: it is not stored, or possibly not; ``lost`` has the error.  After a
            timeout or a lost connection the broker may still execute it, also after the next one
        """
        check_offset(offset)
        await self._learn_route(queue)
        async with self._committing.hold(queue):
            await self._store.update(queue, offset)
            try:
                await self._store.persist([queue])
            finally:
                await self._store.remove(queue)  # other clients commit too

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none.

        Brokers before 5.0 return 0 for a new queue without a committed offset.
        """
        await self._learn_route(queue)
        return await self._instance.broker.query_offset(self._group, queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still stored."""
        await self._learn_route(queue)
        return await self._instance.broker.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        await self._learn_route(queue)
        return await self._instance.broker.max_offset(queue)

    async def offset_for_time(self, queue: MessageQueue, when: datetime) -> int:
        """Return the first offset stored at or after *when*, which needs a time zone.

        If all messages are older, this is the end of the queue; brokers before 5.0 return the
        offset of the last message.  In a logical queue that has moved it can be too low (5.5.0).
        """
        if not isinstance(when, datetime) or when.utcoffset() is None:
            raise ConfigError("when", when, "expected a datetime with a time zone")
        await self._learn_route(queue)
        return await self._instance.broker.offset_for_time(queue, millis_of(when))

    async def send_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Store a copy of *message* in the retry topic or the dead-letter queue of the group.

        The retry topic, ``%RETRY%`` and the group's name, is read like any other.

        :param delay_level: of the broker's table, by default 1 to 18; 0: increasing with each
            retry, from level 3; -1, and after 16 retries: to the dead-letter queue
        :raises RocketMQError: no broker stored it
        """
        if not isinstance(message, MessageExt):
            raise ConfigError("message", message, "expected a message that was pulled")
        check_delay_level(delay_level)
        await self._learn_route(message.queue)
        await self._send_back.send_back(message, delay_level)

    async def message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of *topic*, fetched from a name server.

        :raises RouteNotFoundError: there is no such topic
        """
        self._check_running()
        route = await self._instance.routes.fetch(check_topic(topic))
        return list(route.subscribe_queues)

    # --- for the instance -----------------------------------------------------------------------

    def on_failed(self, cause: BaseException) -> None:
        """End running pulls: the instance has failed."""
        super().on_failed(cause)
        self._end_pulls()

    async def _open(self) -> None:
        self._instance.register_reader(self)

    async def _shut(self) -> None:
        self._end_pulls()
        self._decoder.close()
        self._instance.unregister_reader(self)

    def _end_pulls(self) -> None:
        for scope in self._running_pulls:
            scope.cancel()

    async def _learn_route(self, queue: MessageQueue) -> None:
        checked_queue(queue)
        self._check_running()
        await self._pulls.learn_route(queue.topic)
