"""Producer: one send is one await, from the queue selection to the broker's response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
from threading import get_ident
from time import monotonic, time_ns
from typing import Any, Generic

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import AutoBatch, ProducerConfig
from rocketmq_aio.config.validation import checked_seconds, checked_several, is_queue
from rocketmq_aio.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    NotRunningError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.client_base import ClientBase
from rocketmq_aio.instance.client_instance import MQClientInstance
from rocketmq_aio.instance.hook_runner import AnySendHook
from rocketmq_aio.model.codec import V, encode_with
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.batched_sends import BatchedSends
from rocketmq_aio.producer.batching.explicit_batch import check_batchable, message_list, send_batch
from rocketmq_aio.producer.batching.pre_encoded import Encoded, send_encoded
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.queue_selection import (
    ANY_QUEUE,
    NO_CHOICE,
    OrderKey,
    QueueChoice,
    check_no_priority,
    checked_key,
)
from rocketmq_aio.producer.recall import recall
from rocketmq_aio.producer.request_reply import RequestReply
from rocketmq_aio.producer.send_request import make_request, not_a_message
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import QueueSelector, not_of_topic


class Producer(ClientBase, Generic[V]):
    """Sends messages; use one for the whole application, from any number of tasks.

    Concurrent calls give throughput: their frames share writes.  Calls beyond ``max_in_flight``
    or ``max_in_flight_bytes`` wait.

    :param group: name of the producer group
    :param namesrv: name servers; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param config: settings; default ``ProducerConfig()``
    :param hooks: `SendHook` and `CheckForbiddenHook` objects
    :raises ConfigError: an argument is invalid
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None = None,
        client: MQClientInstance | ClientConfig | None = None,
        config: ProducerConfig[V] | None = None,
        hooks: Iterable[AnySendHook] = (),
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client)
        group = self._group
        if config is not None and not isinstance(config, ProducerConfig):
            raise ConfigError("config", config, "expected a ProducerConfig")
        self._config = config = config or ProducerConfig()
        self._hooks = hook_calls = SendHooks(group, self._bind_hooks(hooks))
        self._sender = sender = Sender(
            self._instance, group, config, hook_calls.stored, self._check_running
        )
        auto_batch = config.auto_batch or AutoBatch(linger_seconds=0)
        self._batched_sends = BatchedSends(auto_batch, sender)
        self._request_reply = RequestReply(sender, hook_calls)
        # For the short way of `send`; chosen once, so that only sends with hooks pay for them.
        self._in_flight = sender.in_flight
        self._infos = sender.table.infos
        self._ids = sender.ids
        self._attempts = sender.attempts
        self._order = sender.order
        self._selection = sender.selection
        self._is_hooked = bool(hook_calls)
        is_batching = config.auto_batch is not None
        self._is_short = not is_batching
        self._send_unhooked = self._batched_sends.send if is_batching else self._send_alone

    # --- sending --------------------------------------------------------------------------------

    async def send(  # noqa: C901 - flat: the short way, with a key or without, calls no other function
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send *message* and return where it was stored.

        Without *queue* or *selector* the topic's queues are used round-robin, and a retry avoids
        the broker that failed.  With one of them a retry keeps the queue.  All attempts have the
        same message id.  With a status other than SEND_OK the message is stored too, with a weaker
        guarantee.

        Messages with the same *sharding_key*, of the call or of the message, are sent to one queue
        one after another, in the order of the calls, also under failures; other keys do not wait.

        :param selector: ``(queues, message) -> queue``, such as `select_by_hash`
        :param timeout_seconds: for the whole call, default ``send_timeout_seconds``
        :raises InvalidMessageError: the message is invalid; nothing was sent
        :raises ConfigError: more than one of *queue*, *sharding_key* and *selector* is given, or
            an argument is invalid; nothing was sent
        :raises RouteNotFoundError: there is no such topic, or no queue of it is writable
        :raises NameServerUnavailableError: no name server responded in time
        :raises SendUnknownError: it may have been stored
        :raises SendError: it was not stored
        :raises BrokerError: the broker rejected it (size, account, permission)
        """
        if self._thread != get_ident() or not self._is_running():
            self._check_running()
        if type(message) is not Message:
            _check_message(message)
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_seconds("timeout_seconds", timeout_seconds)
        deadline = monotonic() + seconds
        fixed = queue is not None or selector is not None
        keyed = sharding_key is not None or message.sharding_key is not None
        if not self._is_short or message.timed or (keyed and fixed):
            choice = QueueChoice(queue, selector, sharding_key) if keyed or fixed else NO_CHOICE
            if not self._is_hooked:
                return await self._send_unhooked(message, choice, seconds, deadline)
            hooked = self._hooks.context("send", queue, message)
            return await self._hooks.around(
                hooked, lambda: self._send_unhooked(hooked.message, choice, seconds, deadline)
            )
        # As `Sender.send` and `SendHooks.around`, with coroutines and functions less.
        context, started = None, 0.0
        if self._is_hooked:
            context = self._hooks.context("send", queue, message)
            self._hooks.before(context)
            message, started = context.messages[0], monotonic()
        topic, size = message.topic, len(message.body)
        routing, in_flight = ANY_QUEUE, self._in_flight
        order_key: OrderKey | None = None
        try:
            if keyed:
                routing = self._selection.routing_by_key(message, sharding_key)
                key = topic, routing.key
                if not self._order.try_acquire(key):
                    await self._sender.wait_for_order(key, deadline)
                order_key = key
            elif fixed:
                routing = self._selection.routing(message, QueueChoice(queue, selector))
            if not in_flight.try_acquire(size):
                await self._sender.wait_for_room(size, deadline, topic)
            try:
                publish, select = self._infos.get(topic), routing.select_target
                if publish is None:
                    found = self._sender.find_target(topic, select, deadline, message)
                    publish, target = await found
                else:
                    try:
                        target = select(publish)
                    except RouteNotFoundError:  # of the queue
                        found = self._sender.find_target(topic, select, deadline)
                        publish, target = await found
                now_ms = time_ns() // 1_000_000
                message_id = self._ids.next_id(now_ms)
                request = make_request(
                    message, target, message_id, now_ms, self._config, routing.extra
                )
                request.fixed = routing.fixed
                result = await self._attempts.run(request, publish, deadline)
            finally:
                in_flight.release(size)
        except BaseException as error:
            if context is not None:
                self._hooks.after(context, started, error)
            raise
        finally:
            if order_key is not None:
                self._order.release(order_key)
        if context is not None:
            context.outcomes = (result,)
            self._hooks.after(context, started)
        return result

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None
    ) -> asyncio.Future[SendResult]:
        """Send *message* without waiting; return the future of the result.

        Messages sent in one iteration of the event loop share a batch, or as ``auto_batch`` says.
        Await the futures: asyncio logs an error that is never retrieved.

        :raises BackpressureError: ``max_in_flight`` or its bytes are reached; nothing was sent
        :raises InvalidMessageError: the message is invalid, or has a sharding key or a delivery
            time (use `send`); nothing was sent
        :raises ConfigError: *queue* is not a queue of its topic
        """
        if self._thread != get_ident() or not self._is_running():
            self._check_running()
        _check_message(message)
        if message.sharding_key is not None or message.timed:
            reason = "a message with a sharding key or a time has to be awaited: use send"
            raise InvalidMessageError(message.topic, reason)
        if queue is not None:
            if not is_queue(queue) or queue.topic != message.topic:
                raise not_of_topic(queue, message.topic)
            check_no_priority(message)
        seconds = self._config.send_timeout_seconds
        if not self._is_hooked:
            return self._batched_sends.send_nowait(message, queue, seconds)
        context = self._hooks.context("send_nowait", queue, message)
        return self._hooks.around_future(
            context, lambda: self._batched_sends.send_nowait(context.message, queue, seconds)
        )

    async def flush(self) -> None:
        """Send all messages that wait in batches; return when all have their results.

        Errors are raised in the calls that sent the messages.
        """
        self._check_running()
        await self._batched_sends.accumulator.flush()

    async def send_value(
        self,
        topic: str,
        value: V,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
        **message_fields: Any,  # noqa: ANN401 - fields of Message
    ) -> SendResult:
        """Send a message whose body is *value*, encoded by the ``codec`` of the config.

        :param message_fields: ``tags``, ``keys``, ``properties`` and other fields of `Message`
        :raises PayloadError: the codec cannot encode it; nothing was sent
        :raises ConfigError: the config has no codec
        :raises RocketMQError: as `send`
        """
        codec = self._config.codec
        if codec is None:
            raise ConfigError("codec", None, "send_value needs ProducerConfig(codec=...)")
        message_fields["sharding_key"] = sharding_key
        message = Message(topic, encode_with(codec, value), **message_fields)
        return await self.send(
            message, queue=queue, selector=selector, timeout_seconds=timeout_seconds
        )

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send *message* without a response: you do not learn whether it was stored.

        A *sharding_key* chooses the queue; brokers may store such messages in another order.

        :raises InvalidMessageError: the message is invalid; nothing was sent
        :raises RouteNotFoundError: there is no such topic, or no queue of it is writable
        :raises NameServerUnavailableError: no name server responded in time
        :raises NotConnectedError: it was not sent
        :raises NotSupportedError: no broker of the topic supports its delivery time
        :raises SendError: ``max_in_flight`` was reached until the timeout; it was not sent
        """
        self._check_running()
        _check_message(message)
        choice = QueueChoice(queue, selector, sharding_key)

        def send(message: Message) -> Coroutine[Any, Any, None]:
            routing = self._selection.routing(message, choice)
            return self._sender.send_oneway(message, routing, self._deadline(None))

        await self._hooks.around_message("send_oneway", message, queue, send)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult]:
        """Send *messages* in as few requests as their topics and sizes allow.

        The messages of one request are stored in one queue in their order, all or none.  Each has
        its own message id and result, in the order of *messages*.  With *queue* the requests are
        sent one after another, which keeps the order of all messages; when a request fails, the
        messages of later ones are not sent.

        :param timeout_seconds: for the whole call, default ``send_timeout_seconds``
        :raises InvalidMessageError: one of them may not be part of a batch; nothing was sent
        :raises RocketMQError: as `send`; the only request failed
        :raises BatchError: some of several requests failed; it has the outcome of every message
        """
        self._check_running()
        given, deadline = message_list(messages), self._deadline(timeout_seconds)
        if not self._is_hooked or not given:
            return await send_batch(self._sender, given, queue, deadline)
        for message in given:
            check_batchable(message)
        context = self._hooks.context("send_batch", queue, *given)
        return await self._hooks.around(
            context, lambda: send_batch(self._sender, [*context.messages], queue, deadline)
        )

    async def send_encoded(
        self,
        encoded: Encoded,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send *encoded* as it is and return where it, or its first message, was stored.

        Sends with the same *sharding_key* go to the same queue, but do not wait for each other:
        await one before the next where their order matters.  Hooks are not called, because they
        take messages; a `MessageTrace` records it.

        :param timeout_seconds: for the whole call, default ``send_timeout_seconds``
        :raises ConfigError: both *queue* and *sharding_key* are given, or one is invalid
        :raises InvalidMessageError: it is too large; nothing was sent
        :raises RocketMQError: as `Producer.send`
        """
        self._check_running()
        deadline = self._deadline(timeout_seconds)
        return await send_encoded(self._sender, encoded, queue, sharding_key, deadline)

    async def queues_of_keys(
        self, topic: str, keys: Iterable[str], *, timeout_seconds: float | None = None
    ) -> list[MessageQueue]:
        """Return the queue of each of *keys*, as sharding keys.

        :raises RouteNotFoundError: there is no such topic, or a queue is not writable now
        :raises NameServerUnavailableError: no name server responded in time
        """
        self._check_running()
        deadline, keys = self._deadline(timeout_seconds), checked_several("keys", keys)
        publish = await self._sender.table.find(check_topic(topic), deadline)
        by_key = self._selection.by_key
        return [by_key(checked_key(key), True).select_target(publish).queue for key in keys]

    async def request(
        self,
        message: Message,
        timeout_seconds: float | None = None,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send *message* and return the message that its consumer sends with `reply`.

        At most 900 requests are in flight; further ones wait.

        :param timeout_seconds: for the whole call, default ``send_timeout_seconds``
        :raises ReplyTimeoutError: no reply arrived in time
        :raises CodecError: a reply arrived that cannot be read
        :raises RocketMQError: as `send`
        """
        self._check_running()
        _check_message(message)
        choice = QueueChoice(queue, selector, sharding_key)
        return await self._request_reply.request(message, choice, self._deadline(timeout_seconds))

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        timeout_seconds: float | None = None,
        **message_fields: Any,  # noqa: ANN401 - fields of Message
    ) -> SendResult:
        """Reply to *request*, a message that this or a Java client sent as a request.

        :param message_fields: ``tags``, ``keys`` and ``properties`` of the reply
        :raises ConfigError: it is not a request
        :raises SendError: the requester does not wait any more, or could not be reached
        :raises RocketMQError: as `send`
        """
        self._check_running()
        deadline = self._deadline(timeout_seconds)
        return await self._request_reply.reply(request, body, message_fields, deadline)

    @property
    def dropped_replies(self) -> int:
        """Replies to this client that arrived late, twice, or for an unknown request."""
        return self._instance.replies.dropped

    async def recall(self, topic: str, handle: str | None) -> str:
        """Cancel the delivery of a delayed message; return its message id.

        Success does not prove it: brokers do not check whether the message is still pending.

        :param handle: ``recall_handle`` of the result of its send
        :raises ConfigError: *handle* does not belong to *topic*; only messages with
            ``delay_seconds`` or ``deliver_at`` have one
        :raises PermissionDeniedError: the broker's ``recallMessageEnable`` is off, its default
        :raises NotSupportedError: the broker is older than 5.3.2
        :raises BrokerError: the delivery time has passed (604), or the broker rejects it otherwise
        """
        self._check_running()
        seconds = self._config.send_timeout_seconds
        message_id = await recall(self._instance, self._group, check_topic(topic), handle, seconds)
        self._hooks.recalled(topic, message_id)
        return message_id

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of *topic*.

        :raises RouteNotFoundError: there is no such topic
        :raises NameServerUnavailableError: no name server responded
        """
        self._check_running()
        route = await self._instance.routes.get(check_topic(topic))
        return list(route.publish_queues)

    # --- for the instance -----------------------------------------------------------------------

    def topics(self) -> Iterable[str]:
        """Topics sent to lately, and the template of topics that brokers create."""
        topics = {self._config.template_topic, *self._sender.table.topics()}
        self._selection.forget_unused(topics)
        return topics

    def on_route_changed(self, topic: str) -> None:
        """Use the new queues from the next send on."""
        self._sender.table.drop(topic)
        self._sender.faults.forget(self._instance.send_addresses())

    def on_failed(self, cause: BaseException) -> None:
        super().on_failed(cause)
        error = NotRunningError(f"{self!r} failed: {cause!r}")
        self._batched_sends.accumulator.fail_all(error)

    async def _open(self) -> None:
        self._ids.renew()
        self._instance.register_producer(self)

    async def _shut(self) -> None:
        self._request_reply.close(ClosedError(f"{self!r} is closed"))
        self._in_flight.close(ClosedError(f"{self!r} is closed"))
        self._batched_sends.accumulator.close_all()
        try:
            # Sends in flight end by their own deadlines.
            await self._in_flight.wait_until_empty()
        finally:  # also when that takes longer than a close may
            self._attempts.close()
            self._sender.faults.close()
            await self._instance.unregister_producer(self)

    def _send_alone(
        self, message: Message, choice: QueueChoice, _seconds: float, deadline: float
    ) -> Awaitable[SendResult]:
        return self._sender.send(message, self._selection.routing(message, choice), deadline)

    def _deadline(self, timeout_seconds: float | None) -> float:
        if timeout_seconds is None:
            return monotonic() + self._config.send_timeout_seconds
        return monotonic() + checked_seconds("timeout_seconds", timeout_seconds)


def _check_message(message: object) -> None:
    if not isinstance(message, Message):
        raise not_a_message(message)
