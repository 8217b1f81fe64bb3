"""PushConsumer: calls a handler with each message, concurrently or in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import MAX_CONCURRENCY, PushConfig
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.hooks import checked_hooks
from rocketmq_aio.consumer.common.listeners import (
    AssignmentListener,
    check_listener,
    checked_listeners,
)
from rocketmq_aio.consumer.group.member import GroupMember
from rocketmq_aio.consumer.push.handlers import (
    BatchHandler,
    Handler,
    MessageHandler,
    decoding,
    hooked,
)
from rocketmq_aio.consumer.push.push_engine import PushEngine
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.hook_runner import AnyPushHook
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageModel, MessageQueue, MessageSelector
from rocketmq_aio.signals import stop_signals


class PushConsumer(GroupMember[PushEngine]):
    """Calls a handler with each message, as a member of a group.

    A message is done when its handler returns.  A message whose handler raises is redelivered with
    increasing delays; after ``max_reconsume_times`` retries it goes to the dead-letter topic.
    Raise `RetryLater` or `SuspendQueue` to choose the delay.  Delivery is at least once: handlers
    have to accept duplicates.  ``async def`` handlers run on the event loop, plain functions in
    threads, up to ``concurrency`` at the same time.

    :param group: name of the consumer group
    :param on_message: called with each message
    :param on_batch: called with (messages of one queue, `BatchContext`) instead, at most
        ``consume_batch_size`` messages
    :param orderly: one handler per queue at a time, in the order of the queue; a failed message is
        retried before the next one
    :param namesrv: addresses of name servers; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param config: settings; default ``PushConfig()``
    :param hooks: `ConsumeHook` and `FilterMessageHook` objects
    :param on_assigned: called with newly assigned queues, plain or async
    :param on_revoked: called with queues about to be revoked
    :param on_event: a plain function called with every event, see `events`
    :raises ConfigError: an argument is invalid, or *on_message* and *on_batch* are given, or none
    """

    def __init__(
        self,
        group: str,
        *,
        on_message: MessageHandler[V] | None = None,
        on_batch: BatchHandler[V] | None = None,
        orderly: bool = False,
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
        config: PushConfig[V] | None = None,
        hooks: Iterable[AnyPushHook] = (),
        on_assigned: AssignmentListener | None = None,
        on_revoked: AssignmentListener | None = None,
        on_event: Callable[[ConsumerEvent], object] | None = None,
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client)
        group = self._group
        config = PushConfig() if config is None else config
        _check_modes(config, orderly=orderly, single=on_message is not None)
        listeners = checked_listeners(on_assigned, on_revoked)
        check_listener("on_event", on_event, "event", may_be_async=False)
        consume_hooks, filters = checked_hooks(self._bind_hooks(hooks))
        handler = Handler(on_message, on_batch, name=f"rocketmq-{group}")
        if consume_hooks:
            handler.wrap(lambda call: hooked(call, consume_hooks, group))
        if (codec := config.codec) is not None:  # outside the hooks: they run only around handlers
            handler.wrap(lambda call: decoding(call, codec))
        self._close_seconds += config.close_timeout_seconds
        context = ConsumerContext(
            self._instance,
            group,
            config,
            on_failed=self.on_failed,
            on_event=on_event,
            filters=filters,
        )
        self._engine = PushEngine(context, handler, listeners, orderly=orderly)

    async def subscribe(self, topic: str, selector: str | MessageSelector = "*") -> None:
        """Read *topic* as a member of the group; may be called before `start` and again later.

        :param selector: a tag expression such as ``"new || paid"``, or `MessageSelector.by_sql`
        :raises ConfigError: the topic or expression is wrong
        :raises SubscriptionError: the broker does not accept the SQL expression
        """
        self._check_usable()
        topic = check_topic(topic)
        await self._engine.subscribe(topic, selector)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic*: running handlers finish, offsets are committed.

        Waits up to ``close_timeout_seconds`` for handlers.  Called in a handler or a listener, it
        ends the delivery and returns; the rest follows in the background.
        """
        self._check_usable()
        wait = self._engine.config.close_timeout_seconds
        await self._engine.unsubscribe(check_topic(topic), drain_seconds=wait)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at *offset* and commit it; cached messages of the queue are dropped.

        The results of running handlers do not count.  This also resumes a queue after `QueueHeld`.

        :raises ConfigError: the queue is not assigned, is popped, or has no such offset
        """
        self._check_running()
        await self._engine.seek(queue, offset)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return how many messages of each queue are not done, including those in flight.

        Popped queues are left out: the broker keeps their progress.

        :raises RocketMQError: a broker did not respond
        """
        self._check_running()
        return await self._engine.lag()

    def suspend(self) -> None:
        """Call no handler until `resume`; running handlers finish."""
        self._check_running()
        self._engine.suspend()

    def resume(self) -> None:
        """Call handlers again."""
        self._check_running()
        self._engine.resume()

    def is_suspended(self) -> bool:
        """Whether `suspend` was called, and not `resume` since."""
        return self._engine.suspended

    def set_concurrency(self, concurrency: int) -> None:
        """Set how many handlers may run at the same time; running ones finish in any case.

        :raises ConfigError: it is not a number from 1 to 1000
        """
        checked_count("concurrency", concurrency, most=MAX_CONCURRENCY)
        self._check_running()
        self._engine.workers.resize(concurrency)

    async def run(self) -> None:
        """Start the consumer if necessary, and run until it is closed.

        SIGINT and SIGTERM (in the main thread) and cancellation close it: running handlers finish,
        offsets are committed, the consumer leaves the group.  One signal closes every consumer in
        `run()`; until then the program's own handlers of these signals are replaced.

        :raises NotRunningError: a background task has failed; the cause says why
        """
        if self._can_prepare():
            await self.start()
        self._check_running()
        try:
            with stop_signals(self._on_signal):
                await self._engine.stopped.wait()
        finally:
            await self.close()
        self._raise_failure()

    def _on_signal(self) -> None:
        loop = self._home
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._engine.stopped.set)  # also wakes the loop

    async def _shut(self) -> None:
        await self._engine.shut()


def _check_modes(config: object, *, orderly: object, single: bool) -> None:
    """Validate the combination of settings.

    :param single: whether the handler takes one message at a time
    """
    if not isinstance(config, PushConfig):
        raise ConfigError("config", config, "expected a PushConfig")
    if type(orderly) is not bool:
        raise ConfigError("orderly", orderly, "expected True or False")
    if single and (size := config.consume_batch_size) > 1:
        raise ConfigError("consume_batch_size", size, "on_message= takes single messages")
    clustering = config.message_model is MessageModel.CLUSTERING
    if not config.client_rebalance and (orderly or not clustering):
        reason = "brokers assign queues for concurrent consumption in a cluster only"
        raise ConfigError("client_rebalance", config.client_rebalance, reason)
