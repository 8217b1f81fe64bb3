"""PushConsumer: messages are brought to handlers, many at once or in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic, time_ns

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import MAX_CONCURRENCY, PushConfig
from rocketmq_aio.config.validation import checked_count
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.hooks import checked_hooks
from rocketmq_aio.consumer.common.listeners import (
    AssignmentListener,
    AssignmentListeners,
    check_listener,
)
from rocketmq_aio.consumer.common.send_back import restore_topic
from rocketmq_aio.consumer.group.member import GroupMember
from rocketmq_aio.consumer.push.engine import PushEngine
from rocketmq_aio.consumer.push.handlers import (
    BatchContext,
    BatchHandler,
    Handler,
    MessageHandler,
    RetryLater,
    SuspendQueue,
    decoding,
    hooked,
)
from rocketmq_aio.consumer.push.service import reason_of
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.instance.hook_runner import AnyPushHook
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.message import MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageModel, MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import ConsumeDirectlyResult, DirectOutcome
from rocketmq_aio.remoting.background_tasks import call_isolated, in_background_task
from rocketmq_aio.signals import stop_signals


class PushConsumer(GroupMember[PushEngine]):
    """Calls a handler with each message, as a member of a group.

    A handler that returns settles the message; one that raises lets it come again later, with
    longer and longer pauses, and after ``max_reconsume_times`` among the dead letters.
    `RetryLater` and `SuspendQueue` say more about that.  Every message comes at least once:
    handlers have to bear with seeing one again.  ``async def`` handlers run on the event loop,
    plain functions in threads; ``concurrency`` says how many run at once.

    :param group: name of the consumer group
    :param on_message: called with each message
    :param on_batch: called with (messages of one queue, `BatchContext`) instead; at most
        ``consume_batch_size`` at once
    :param orderly: one handler per queue at a time, in the order of the queue; a message that
        failed is tried again before the next one
    :param namesrv: where to connect; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param hooks: `ConsumeHook` and `FilterMessageHook` objects
    :param on_assigned: called with queues that were taken on, plain or async
    :param on_revoked: called with queues about to be given up
    :param on_event: a plain function called with every event, see `events`
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
        config = PushConfig() if config is None else config
        _check_modes(config, orderly=orderly, single=on_message is not None)
        check_listener("on_assigned", on_assigned)
        check_listener("on_revoked", on_revoked)
        check_listener("on_event", on_event, may_be_async=False)
        consume_hooks, filters = checked_hooks(self._bind_hooks(hooks))
        handler = Handler(on_message, on_batch, name=f"rocketmq-{group}")
        if consume_hooks:
            handler.wrap(lambda call: hooked(call, consume_hooks, group))
        if (codec := config.codec) is not None:  # around the hooks: they hear of handlers that run
            handler.wrap(lambda call: decoding(call, codec))
        self._call = handler.call
        self._close_seconds += config.close_timeout_seconds
        context = ConsumerContext(
            self._instance,
            group,
            config,
            on_failed=self.on_failed,
            on_event=on_event,
            filters=filters,
        )
        listeners = AssignmentListeners(on_assigned, on_revoked)
        self._engine = PushEngine(context, handler, listeners, orderly=orderly)

    async def subscribe(self, topic: str, selector: str | MessageSelector = "*") -> None:
        """Read *topic* as a member of the group; may be called before `start` and again later.

        :param selector: a tag expression such as ``"new || paid"``, or `MessageSelector.by_sql`
        :raises ConfigError: the topic or expression is wrong
        :raises SubscriptionError: the broker does not accept the SQL expression
        """
        self._check_usable()
        check_topic(topic)
        await self._engine.subscribe(topic, selector, time_ns() // 1_000_000)

    async def unsubscribe(self, topic: str) -> None:
        """Stop reading *topic*: running handlers end, what is done is committed.

        They have ``close_timeout_seconds`` for it.  From inside a handler nobody is waited for.
        """
        self._check_usable()
        wait = 0.0 if in_background_task() else self._engine.config.close_timeout_seconds
        await self._engine.unsubscribe(topic, drain_seconds=wait)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at *offset*, and commit it: what is cached of the queue is dropped.

        Running handlers end, and what becomes of their messages does not count.  So pulling goes
        on that a `QueueHeld` event told of, too.

        :raises ConfigError: the queue is not assigned, is popped, or has no such offset
        """
        self._check_running()
        await self._engine.seek(queue, offset)

    async def lag(self) -> dict[MessageQueue, int]:
        """Return how many messages of each queue are not done, those at work included.

        Queues that are popped are left out: their progress is the broker's business.

        :raises RocketMQError: a broker did not answer
        """
        self._check_running()
        return await self._engine.lag()

    def suspend(self) -> None:
        """Call no handler until `resume`, also not with what is cached; running ones end."""
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
        """Let so many handlers run at once from now on; running ones end in any case.

        :raises ConfigError: it is not a number from 1 to 1000
        """
        checked_count("concurrency", concurrency, most=MAX_CONCURRENCY)
        self._check_running()
        self._engine.workers.resize(concurrency)

    async def run(self) -> None:
        """Consume until the consumer is closed; start it if need be.

        SIGINT and SIGTERM, when this is the program's main thread, and cancellation close it:
        running handlers end, progress is stored, the group is left.  One signal closes every
        consumer that runs so; meanwhile the program's own handlers of these signals are replaced.

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

    # --- for the instance -----------------------------------------------------------------------

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Where this consumer stands."""
        table = self._engine.table
        return {
            q: a.committable for q, a in table.items() if q.topic == topic and a.committable >= 0
        }

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeDirectlyResult:
        """An administrator tries the handler with one message."""
        restore_topic(message)
        started = monotonic()
        outcome, remark = await self._try(message)
        return ConsumeDirectlyResult(
            consume_result=outcome,
            order=self._engine.orderly,
            remark=remark,
            spent_time_mills=int((monotonic() - started) * 1000),
        )

    # --- inside ---------------------------------------------------------------------------------

    async def _try(self, message: MessageExt) -> tuple[DirectOutcome, str | None]:
        """Call the handler; return what came of it, and its words."""
        try:
            said = await call_isolated(self._call, [message])
            if isinstance(said, RetryLater | SuspendQueue):
                return DirectOutcome.LATER, str(said)
            if isinstance(said, BatchContext) and not said.done(1):
                return DirectOutcome.LATER, None
        except (RetryLater, SuspendQueue) as answer:
            return DirectOutcome.LATER, str(answer)
        except Exception as error:  # noqa: BLE001 - the application's code
            return DirectOutcome.RAISED, reason_of(error)
        return DirectOutcome.SUCCESS, None

    def _on_signal(self) -> None:
        loop = self._home
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._engine.stopped.set)  # also wakes the loop

    async def _open(self) -> None:
        await self._engine.open(self, self._engine.config.commit_interval_seconds)

    async def _shut(self) -> None:
        await self._engine.shut(self)


def _check_modes(config: object, *, orderly: object, single: bool) -> None:
    """Refuse settings that do not go together.

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
        reason = "brokers share queues out for concurrent consumption in a cluster only"
        raise ConfigError("client_rebalance", config.client_rebalance, reason)
