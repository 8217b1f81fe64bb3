"""PopConsumer (5.x): the broker distributes messages one by one among the group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from threading import get_ident
from typing import Final, Generic, Self

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import LEAST_INVISIBLE, MAX_POP, PopConfig
from rocketmq_aio.config.validation import checked_count, checked_seconds
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.hooks import checked_consume_hooks
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.pop_client import PopRequest
from rocketmq_aio.consumer.pop.pop_engine import PopEngine, Worker
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.hook_runner import AnyConsumeHook
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageSelector

LONGEST_SECONDS: Final = 12 * 3600.0  # of what a caller may ask for


class PopConsumer(ClientBase, Generic[V]):
    """Receives messages that the brokers of RocketMQ 5 distribute among the group themselves.

    All members of a group receive from all queues: queues are not assigned, and a stuck member
    does not block others.  A received message is invisible to the group for a while; unless it is
    acknowledged within that time, it is redelivered.  Several tasks may receive concurrently.

    :param group: name of the consumer group
    :param namesrv: name server addresses; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param config: settings; default ``PopConfig()``
    :param hooks: `ConsumeHook` objects, called when messages are delivered
    :raises ConfigError: an argument is invalid
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
        config: PopConfig[V] | None = None,
        hooks: Iterable[AnyConsumeHook] = (),
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client)
        group = self._group
        if config is not None and not isinstance(config, PopConfig):
            raise ConfigError("config", config, "expected a PopConfig")
        self._config = config or PopConfig()
        context = ConsumerContext(self._instance, group, self._config, on_failed=self.on_failed)
        self._engine = PopEngine(context)
        self._hooks = checked_consume_hooks(self._bind_hooks(hooks))

    # --- subscriptions --------------------------------------------------------------------------

    async def subscribe(self, topic: str, selector: str | MessageSelector = "*") -> None:
        """Receive messages of *topic*; may be called before `start` and again later.

        :param selector: a tag expression such as ``"new || paid"``, or `MessageSelector.by_sql`
        :raises ConfigError: the topic or expression is wrong
        :raises SubscriptionError: the broker does not accept the SQL expression
        :raises NotSupportedError: a broker of the topic is older than 5.0, or the name server
            is a proxy (`start` raises it too)
        """
        self._check_usable()
        topic = check_topic(topic)
        await self._engine.subscribe(topic, selector)

    async def unsubscribe(self, topic: str) -> None:
        """Stop receiving *topic*; received messages can still be acknowledged."""
        self._check_usable()
        await self._engine.unsubscribe(check_topic(topic))

    # --- messages -------------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int | None = None,
        invisible_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> list[PoppedMessage[V]]:
        """Return messages, waiting up to *wait_seconds* for the first; ``[]`` if none arrives.

        They stay invisible to the group for *invisible_seconds*: `ack`, `change_invisible` or
        `retry` them, or they are redelivered after that time.  Cancelling loses nothing: messages
        in flight are returned by the next call, or redelivered to the group.  A message that was
        popped for another call stays invisible as long as that one said: see its `deadline`.

        :param max_messages: 1 to 32; the default of each parameter is in the settings
        :param invisible_seconds: at least 0.01
        :raises BrokerError: every broker of the topics returned an error
        :raises ClosedError: the consumer was closed
        """
        self._check_running()
        config = self._config
        request = PopRequest(
            config.batch_size
            if max_messages is None
            else checked_count("max_messages", max_messages, most=MAX_POP),
            _checked(
                invisible_seconds, "invisible_seconds", config.invisible_seconds, LEAST_INVISIBLE
            ),
            _checked(wait_seconds, "wait_seconds", config.wait_seconds, 0),
        )
        messages = await self._engine.scheduler.receive(request.most, request, self._check_running)
        self.handed_out(messages)
        return messages

    def __aiter__(self) -> AsyncIterator[PoppedMessage[V]]:
        """Receive messages one by one; several tasks may iterate.

        A message stays invisible while the loop's body runs, and is acknowledged when the loop
        asks for the next one.  Leaving the loop, with ``break`` or an exception, does not
        acknowledge: call `ack` before a ``break`` if the message is processed.
        """
        return MessageLoop(self, self._engine)

    async def ack(self, messages: PoppedMessage | Iterable[PoppedMessage]) -> None:
        """Acknowledge one or several messages; doing so again is harmless.

        :raises AckError: some will, or may, be redelivered; ``lost`` has their errors
        :raises ConfigError: another group received one; nothing was sent
        """
        self._check_running()
        several = messages if isinstance(messages, Iterable) else [messages]
        await self._engine.ack([_checked_message(each, self._group) for each in several])

    async def change_invisible(
        self, message: PoppedMessage, seconds: float, *, suspend: bool = False
    ) -> None:
        """Make *message* invisible to the group for *seconds* from now on.

        :param suspend: a redelivery after that time does not count as a retry: brokers from 5.5
            leave ``reconsume_times`` unchanged, except in order
        :raises ReceiptError: the invisible time is over, or the message is no longer held
        :raises RocketMQError: the broker did not change it; after `RequestTimeoutError`,
            `ConnectionLostError` and a cancellation it is unknown whether it did
        """
        self._check_running()
        seconds = checked_seconds("seconds", seconds, most=LONGEST_SECONDS)
        message = _checked_message(message, self._group)
        await self._engine.change_invisible(message, seconds, suspend=suspend)

    async def retry(
        self, message: PoppedMessage, delay_seconds: float | None = None, *, suspend: bool = False
    ) -> None:
        """Have *message* redelivered to the group after *delay_seconds*.

        By default the delay grows with every retry, from 10 s to 2 h.  After
        ``max_reconsume_times`` retries the message goes to the dead-letter queue of the group
        (topic ``%DLQ%<group>``).  Raises the errors of `change_invisible`.

        :param suspend: postpone the message: it does not become a dead letter, and on brokers
            from 5.5 the redelivery does not count as a retry, except in order
        """
        self._check_running()
        if delay_seconds is not None:
            checked_seconds("delay_seconds", delay_seconds, most=LONGEST_SECONDS)
        message = _checked_message(message, self._group)
        await self._engine.retry(message, delay_seconds, suspend=suspend)

    def events(self) -> AsyncIterator[ConsumerEvent]:
        """Return a stream of events from now on: failures, dead letters."""
        return self._engine.events.open()

    def on_failed(self, cause: BaseException) -> None:
        """Wake all waiting callers and leave the group: the instance has failed."""
        super().on_failed(cause)
        self._engine.fail()

    async def _open(self) -> None:
        await self._engine.open()

    async def _shut(self) -> None:
        await self._engine.shut()

    def handed_out(self, messages: Iterable[PoppedMessage]) -> None:
        """Call the hooks before *messages* are returned."""
        if self._hooks:
            self._hooks.run_for(self._group, "receive", messages)

    def check_here(self) -> None:
        """Raise unless messages can be received; StopAsyncIteration after the close."""
        if self._thread == get_ident() and self._is_running():
            return
        if self._is_closed():
            raise StopAsyncIteration
        self._check_running()


class MessageLoop(Worker):
    """One ``async for`` over a consumer; while it lives, its current message is renewed."""

    def __init__(self, consumer: PopConsumer, engine: PopEngine) -> None:
        super().__init__()
        self._consumer = consumer
        self._engine = engine

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PoppedMessage:
        """Return the next message, and acknowledge the one before; ends when closed."""
        self._consumer.check_here()
        message = await self._engine.next_for(self, self._consumer.check_here)
        self._consumer.handed_out((message,))
        return message


def _checked(value: float | None, name: str, default: float, least: float) -> float:
    if value is None:
        return default
    return checked_seconds(name, value, least=least, most=LONGEST_SECONDS)


def _checked_message(message: object, group: str) -> PoppedMessage:
    if not isinstance(message, PoppedMessage):
        raise ConfigError("message", message, "expected a message that receive() returned")
    if message.group != group:  # brokers confirm such requests, and do nothing
        reason = f"the group {message.group} received it, not {group}"
        raise ConfigError("message", message.message_id, reason)
    return message
