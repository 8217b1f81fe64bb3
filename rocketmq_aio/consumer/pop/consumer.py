"""PopConsumer (5.x): the broker hands out messages one by one, whoever asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from threading import get_ident
from time import time_ns
from typing import Final, Generic, Self

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.consumer import MAX_POP, PopConfig
from rocketmq_aio.consumer.common.events import ConsumerEvent
from rocketmq_aio.consumer.common.hooks import handing_hooks
from rocketmq_aio.consumer.pop.client import PopRequest
from rocketmq_aio.consumer.pop.engine import PopEngine, Worker
from rocketmq_aio.consumer.pop.message import PoppedMessage
from rocketmq_aio.consumer.pop.running_info import heartbeat_data, running_info
from rocketmq_aio.errors import ConfigError
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.hook_runner import AnyConsumeHook
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.codec import V
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, MessageSelector
from rocketmq_aio.protocol.bodies import ConsumerData, ConsumerRunningInfo

LONGEST_SECONDS: Final = 12 * 3600.0  # of what a caller may ask for


class PopConsumer(ClientBase, Generic[V]):
    """Takes messages from brokers of RocketMQ 5 that share them out themselves.

    All members of a group take from all queues: there is no assignment, and no member that is stuck
    holds up others.  A message that was received is invisible to the group for a while; within that
    time it is acknowledged, or it comes again, to whoever asks.  Several tasks may receive at once.

    :param group: name of the consumer group
    :param namesrv: where to connect; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param hooks: `ConsumeHook` objects; they hear of messages when they are handed out
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
        if config is not None and not isinstance(config, PopConfig):
            raise ConfigError("config", config, "expected a PopConfig")
        self._config = config or PopConfig()
        self._engine = PopEngine(self._instance, group, self._config, on_failed=self.on_failed)
        self._hooks = handing_hooks(self._bind_hooks(hooks))

    # --- what to take ---------------------------------------------------------------------------

    async def subscribe(self, topic: str, selector: str | MessageSelector = "*") -> None:
        """Take messages of *topic*; may be called before `start` and again later.

        :param selector: a tag expression such as ``"new || paid"``, or `MessageSelector.by_sql`
        :raises ConfigError: the topic or expression is wrong
        :raises SubscriptionError: the broker does not accept the SQL expression
        :raises NotSupportedError: a broker of the topic is older than 5.0 (`start` raises it too)
        """
        self._check_usable()
        check_topic(topic)
        await self._engine.subscribe(topic, selector, time_ns() // 1_000_000)

    async def unsubscribe(self, topic: str) -> None:
        """Take no more messages of *topic*; what was received can still be acknowledged."""
        self._check_usable()
        await self._engine.unsubscribe(topic)

    # --- messages -------------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int | None = None,
        invisible_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> list[PoppedMessage[V]]:
        """Return messages, waiting up to *wait_seconds* for the first; ``[]`` when none came.

        They are yours for *invisible_seconds*: `ack` them, `change_invisible` or `retry` them, or
        the group gets them again after that time.  Cancelling loses nothing: what was on its way
        comes with the next call, or again to the group.

        :param max_messages: 1 to 32; default ``batch_size`` of the settings, as the others
        :raises BrokerError: every broker of the topics refuses to give messages
        :raises ClosedError: the consumer was closed
        """
        self._check_running()
        config = self._config
        wish = PopRequest(
            config.batch_size if max_messages is None else _checked_most(max_messages),
            _checked(invisible_seconds, "invisible_seconds", config.invisible_seconds),
            _checked(wait_seconds, "wait_seconds", config.wait_seconds, zero=True),
        )
        messages = await self._engine.rounds.receive(wish.most, wish, self._check_running)
        self.handed_out(messages)
        return messages

    def __aiter__(self) -> AsyncIterator[PoppedMessage[V]]:
        """Work on messages one by one, in as many tasks as you like.

        The message is kept from others while the loop's body runs, and acknowledged when the loop
        comes back for the next one.  Leaving the loop, with ``break`` or an exception, does not
        acknowledge: call `ack` before a ``break`` if the message is done.
        """
        return MessageLoop(self, self._engine)

    async def ack(self, messages: PoppedMessage | Iterable[PoppedMessage]) -> None:
        """Say that a message, or several, are done; doing so again is harmless.

        :raises AckError: of some the group will, or may, get another copy; ``lost`` says which
        """
        self._check_running()
        await self._engine.ack(_several(messages))

    async def change_invisible(self, message: PoppedMessage, seconds: float) -> None:
        """Keep *message* from the group for *seconds* from now on.

        :raises ReceiptError: too late, or the message is settled
        :raises RocketMQError: the broker did not do it; after `RequestTimeoutError` or
            `ConnectionLostError`, and after being cancelled, nobody knows
        """
        self._check_running()
        [one] = _several(message)
        await self._engine.leases.change(one, _checked(seconds, "seconds", 0.0))

    async def retry(self, message: PoppedMessage, delay_seconds: float | None = None) -> None:
        """Give *message* back: the group gets it again after *delay_seconds*.

        By default the delay grows with every try, from 10 s to 2 h.  One that was tried again
        ``max_reconsume_times`` becomes a dead letter of the group (topic ``%DLQ%<group>``).
        Errors as those of `change_invisible`.
        """
        self._check_running()
        [one] = _several(message)
        delay = None if delay_seconds is None else _checked(delay_seconds, "delay_seconds", 0.0)
        await self._engine.retry(one, delay)

    def events(self) -> AsyncIterator[ConsumerEvent]:
        """Return a stream of what happens from now on: failures, dead letters."""
        return self._engine.events.open()

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Topics whose routes must be fresh."""
        return self._engine.subscriptions.keys()

    def heartbeat_data(self) -> ConsumerData:
        """What heartbeats tell about this consumer."""
        return heartbeat_data(self._engine)

    def running_info(self) -> ConsumerRunningInfo:
        """The state of this consumer."""
        engine = self._engine
        return engine.checks.describe(running_info(engine), leaving=not engine.running)

    def on_members_changed(self) -> None:
        """A member came or went: brokers share messages out, but it may subscribe differently."""
        self._engine.checks.wake()

    def on_own_id_asked(self, check_id: str) -> None:
        """A consumer asked about its own client id: brokers do not share messages out by it."""

    def on_route_changed(self, topic: str) -> None:
        """The queues of a topic changed."""
        self._engine.on_route_changed(topic)

    def on_failed(self, cause: BaseException) -> None:
        """Nothing works any more: tell whoever waits, and leave the group."""
        super().on_failed(cause)
        self._engine.fail()
        self._instance.drop_consumer(self)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """An administrator moves the group: the broker's business."""

    async def consumed_offsets(self, topic: str) -> dict[MessageQueue, int]:
        """Offsets are the broker's business."""
        return {}

    # --- inside ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self._engine.open(self)

    async def _shut(self) -> None:
        await self._engine.shut(self)

    def _check_usable(self) -> None:
        if not self._can_prepare():
            self._check_running()

    def handed_out(self, messages: Iterable[PoppedMessage]) -> None:
        """Tell the hooks what a caller is about to get."""
        if self._hooks:
            self._hooks.handed_out(self._group, "receive", messages)

    def check_here(self) -> None:
        """Raise why nothing can be received here and now, or StopAsyncIteration once closed."""
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
        """Return the next message; the one before is done.  Ends when the consumer is closed."""
        self._consumer.check_here()
        message = await self._engine.next_for(self, self._consumer.check_here)
        self._consumer.handed_out((message,))
        return message


def _checked_most(most: int) -> int:
    if type(most) is not int or not 1 <= most <= MAX_POP:
        raise ConfigError("max_messages", most, f"expected a whole number from 1 to {MAX_POP}")
    return most


def _checked(value: float | None, name: str, default: float, *, zero: bool = False) -> float:
    if value is None:
        return default
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not (0 < value <= LONGEST_SECONDS or (zero and value == 0)):
        raise ConfigError(name, value, f"expected seconds above 0, at most {LONGEST_SECONDS:g}")
    return float(value)


def _several(messages: object) -> list[PoppedMessage]:
    several: list[PoppedMessage] = []
    for each in messages if isinstance(messages, Iterable) else [messages]:
        if not isinstance(each, PoppedMessage):
            raise ConfigError("message", each, "expected a message that receive() returned")
        several.append(each)
    return several
