"""Producer: one send is one await, from the queue choice to the broker's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from threading import get_ident
from time import monotonic, time_ns
from typing import Any, Final, Generic

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    BatchError,
    ConfigError,
    InvalidMessageError,
    NotConnectedError,
    RocketMQError,
)
from rocketmq_aio.hooks import SendContext
from rocketmq_aio.instance.hook_runner import AnySendHook
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.codec import V, encode_with
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import check_topic
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.batching.explicit_batch import (
    Batch,
    batches,
    check_batchable,
    check_places,
    several,
)
from rocketmq_aio.producer.batching.pre_encoded import EncodedSender
from rocketmq_aio.producer.careful import ANY_QUEUE, NOTHING_CHOSEN, QueueChoice
from rocketmq_aio.producer.queue_selection import Lane
from rocketmq_aio.producer.recall import recall
from rocketmq_aio.producer.request_reply import how_to_reply
from rocketmq_aio.producer.send_request import check_sizes, not_a_message, outgoing
from rocketmq_aio.producer.topic_publish_info import QueueSelector, not_of_topic
from rocketmq_aio.remoting.gather import gather_limited

MAX_TIMEOUT: Final = 10.0**9
BATCHES_AT_ONCE: Final = 4  # requests of one send_batch call in flight together


class Producer(EncodedSender, Generic[V]):
    """Sends messages; use one for the whole application, from as many tasks as you like.

    Concurrent calls are the way to speed: their frames share writes, and the bounds
    ``max_in_flight`` and ``max_in_flight_bytes`` make further calls wait.

    :param group: name of the producer group
    :param namesrv: where to connect; default ``ROCKETMQ_NAMESRV``, then ``NAMESRV_ADDR``
    :param client: a `ClientConfig` (TLS, credentials, ...) or a running `MQClientInstance` to share
    :param hooks: `SendHook` and `CheckForbiddenHook` objects
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
        super().__init__(group, namesrv=namesrv, client=client, config=config, hooks=hooks)

    # --- sending --------------------------------------------------------------------------------

    async def send(  # noqa: C901 - the short way, with a key or without, has no other function on it
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
    ) -> SendResult:
        """Send *message* and return where it was stored.

        Without *queue* or *selector* the topic's queues take turns, and a retry avoids the broker
        that failed.  With one of them a retry goes to the same queue.  All attempts carry the same
        message id.  A result whose status is not SEND_OK is stored too, with a weaker guarantee.

        Messages with one *sharding_key*, here or of the message, go to one queue whatever fails,
        one after another in the order of the calls; other keys do not wait for them.

        :param timeout_seconds: one deadline for everything, default ``send_timeout_seconds``
        :raises InvalidMessageError: it breaks a rule; nothing was sent
        :raises RouteNotFoundError: there is no such topic, or no queue of it can be written to
        :raises NameServerUnavailableError: no name server answered in time
        :raises SendUnknownError: it may have been stored
        :raises SendError: it was surely not stored
        :raises BrokerError: the broker refused it for good (size, account, permission)
        """
        if self._thread != get_ident() or not self._is_running():
            self._check_running()
        if type(message) is not Message:
            _check_message(message)
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_timeout(timeout_seconds)
        deadline = monotonic() + seconds
        fixed = queue is not None or selector is not None
        keyed = sharding_key is not None or message.sharding_key is not None
        if self._detour or message.timed or (keyed and fixed):
            chosen = (
                QueueChoice(queue, selector, sharding_key) if keyed or fixed else NOTHING_CHOSEN
            )
            return await self._send_off(message, chosen, seconds, deadline)
        way, topic, size, room = ANY_QUEUE, message.topic, len(message.body), self._room
        lane: Lane = topic, None
        if keyed:
            way = self._way_of(message, sharding_key)
            lane = topic, way.key
            if not self._turns.try_take(lane):
                await self._wait_for_turn(lane, deadline)
        elif fixed:
            way = self._way(message, QueueChoice(queue, selector))
        try:
            if not room.try_take(size):
                await self._wait_for_room(size, deadline, topic)
            try:
                publish = self._topics.get(topic)
                if publish is None:
                    check_sizes(message, self._config)
                    publish = await self._publish(topic, deadline)
                now_ms = time_ns() // 1_000_000
                message_id, target = self._ids.next_id(now_ms), way.aim(publish)
                sent = outgoing(message, target, message_id, now_ms, self._config, way.extra)
                sent.fixed = way.fixed
                return await self._attempts.run(sent, publish, deadline)
            finally:
                room.give(size)
        finally:
            if keyed:
                self._turns.give(lane)

    def send_nowait(
        self, message: Message, *, queue: MessageQueue | None = None
    ) -> asyncio.Future[SendResult]:
        """Send *message* without waiting for room; the future holds what `send` would return.

        Messages given in one turn of the event loop travel together, or as ``auto_batch`` says.
        Await the futures: an error that nobody looks at is logged by asyncio.

        :raises BackpressureError: there is no room; nothing was sent
        :raises InvalidMessageError: it breaks a rule; nothing was sent
        """
        if self._thread != get_ident() or not self._is_running():
            self._check_running()
        _check_message(message)
        if message.sharding_key is not None or message.timed:
            reason = "a message with a sharding key or a time has to be awaited: use send"
            raise InvalidMessageError(message.topic, reason)
        if queue is not None and getattr(queue, "topic", None) != message.topic:
            raise not_of_topic(queue, message.topic)
        return self._add(message, queue)

    async def send_value(
        self,
        topic: str,
        value: V,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_seconds: float | None = None,
        **message_fields: Any,  # noqa: ANN401 - those of Message
    ) -> SendResult:
        """Send a message whose body is *value* as the ``codec`` of the config writes it.

        :param message_fields: ``tags``, ``keys``, ``properties`` and whatever else `Message` takes
        :raises PayloadError: the codec cannot write it; nothing was sent
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
        """Send *message* without waiting for an answer: whether it was stored stays unknown.

        A *sharding_key* chooses the queue; brokers may store such messages in another order.

        :raises InvalidMessageError: it breaks a rule; nothing was sent
        :raises RouteNotFoundError: there is no such topic, or no queue of it can be written to
        :raises NotConnectedError: it was not sent
        :raises SendError: there was no room in time; it was not sent
        """
        self._check_running()
        _check_message(message)
        chosen = QueueChoice(queue, selector, sharding_key)
        if not self._hooked:
            await self._send_oneway(message, chosen)
            return
        context = self._context("send_oneway", message, queue)
        await self._hooks.around(context, lambda: self._send_oneway(context.message, chosen))

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_seconds: float | None = None,
    ) -> list[SendResult]:
        """Send *messages* in as few requests as their topics and sizes allow.

        Messages of one request are stored together or not at all, one after another in one queue.
        Each has its own message id and result, in the order given.  With *queue* the requests are
        sent one after another, so that all messages keep their order; after a request that fails
        the messages of the later ones are not sent.

        :raises InvalidMessageError: one of them may not be batched; nothing was sent
        :raises SendError: (or its kinds) the only request failed
        :raises BatchError: of several requests some failed; it holds every message's outcome
        """
        self._check_running()
        given = several(messages)
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_timeout(timeout_seconds)
        deadline = monotonic() + seconds
        if not self._hooked or not given:
            return await self._send_several(given, queue, deadline)
        for message in given:
            check_batchable(message)
        context = SendContext(
            group=self._group, mode="send_batch", messages=tuple(given), queue=queue
        )
        return await self._hooks.around(
            context, lambda: self._send_several(context.messages, queue, deadline)
        )

    async def request(
        self,
        message: Message,
        timeout_seconds: float | None = None,
        *,
        queue: MessageQueue | None = None,
        sharding_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> MessageExt:
        """Send *message* and return what somebody who consumes it replies with `reply`.

        At most 900 requests wait for their replies at once; further ones wait for a place.

        :param timeout_seconds: one deadline for everything, default ``send_timeout_seconds``
        :raises ReplyTimeoutError: no reply came in time
        :raises RocketMQError: as `send`
        """
        self._check_running()
        _check_message(message)
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_timeout(timeout_seconds)
        chosen = QueueChoice(queue, selector, sharding_key)
        return await self._request(message, chosen, monotonic() + seconds)

    async def reply(
        self,
        request: MessageExt,
        body: bytes,
        *,
        timeout_seconds: float | None = None,
        **message_fields: Any,  # noqa: ANN401 - those of Message
    ) -> SendResult:
        """Answer *request*, a message that was sent with `request`, by Java clients too.

        :param message_fields: ``tags``, ``keys`` and ``properties`` of the reply
        :raises ConfigError: it is no request
        :raises SendError: nobody waits for it any more, or it could not be handed over
        :raises RocketMQError: as `send`
        """
        self._check_running()
        seconds = self._config.send_timeout_seconds
        if timeout_seconds is not None:
            seconds = checked_timeout(timeout_seconds)
        topic, properties = how_to_reply(request)
        message = Message(topic, body, **message_fields)
        return await self._reply(request, message, properties, monotonic() + seconds)

    @property
    def dropped_replies(self) -> int:
        """Replies to this client that came too late, twice, or to nothing that it asked."""
        return self._instance.replies.dropped

    async def recall(self, topic: str, handle: str | None) -> str:
        """Have a message that waits for its time not delivered; return the message's id.

        That is no proof: brokers say yes without looking whether the message is still there.

        :param handle: ``recall_handle`` of the result of its send
        :raises ConfigError: *handle* is none of this topic; only messages with ``delay_seconds``
            or ``deliver_at`` have one
        :raises PermissionDeniedError: the broker's ``recallMessageEnable`` is off, its default
        :raises NotSupportedError: the broker is older than 5.3.2
        :raises BrokerError: the time has passed (604), or another refusal
        """
        self._check_running()
        seconds = self._config.send_timeout_seconds
        message_id = await recall(self._instance, self._group, check_topic(topic), handle, seconds)
        self._hooks.recalled(topic, message_id)
        return message_id

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of *topic* can be sent to.

        :raises RouteNotFoundError: there is no such topic
        :raises NameServerUnavailableError: no name server answered
        """
        self._check_running()
        route = await self._instance.routes.get(check_topic(topic))
        return list(route.publish_queues)

    # --- inside ---------------------------------------------------------------------------------

    async def _send_several(
        self, given: Sequence[Message], queue: MessageQueue | None, deadline: float
    ) -> list[SendResult]:
        now_ms = time_ns() // 1_000_000
        made = batches(given, self._ids, now_ms, self._config, in_order=queue is not None)
        check_places(given, made, queue)
        if len(made) == 1:
            whole = await self._send_one_batch(made[0], queue, now_ms, deadline)
            return [result for _, result in made[0].results(whole)]
        if queue is None:
            placed = await self._send_batches(made, now_ms, deadline)
        else:
            placed = await self._send_in_order(made, queue, now_ms, deadline)
        outcomes = [placed[place] for place in range(len(given))]
        results = [each for each in outcomes if isinstance(each, SendResult)]
        if len(results) < len(outcomes):
            raise BatchError(outcomes)
        return results

    async def _send_batches(
        self, made: list[Batch], now_ms: int, deadline: float
    ) -> dict[int, SendResult | RocketMQError]:
        """Return what became of each message, by its place in the caller's list."""
        placed: dict[int, SendResult | RocketMQError] = {}

        async def send_one(number: int) -> None:
            await self._place(made[number], None, now_ms, deadline, placed)

        await gather_limited(send_one, range(len(made)), BATCHES_AT_ONCE)
        return placed

    async def _send_in_order(
        self, made: list[Batch], queue: MessageQueue, now_ms: int, deadline: float
    ) -> dict[int, SendResult | RocketMQError]:
        """Do the same for batches to one queue; after one that fails the rest is not sent."""
        placed: dict[int, SendResult | RocketMQError] = {}
        goes_on = True
        for batch in made:
            if goes_on:
                goes_on = await self._place(batch, queue, now_ms, deadline, placed)
            else:
                cause = NotConnectedError("-", "an earlier request of the batch failed")
                unsent = self._attempts.never_sent(batch.topic, cause)
                placed.update(dict.fromkeys(batch.places, unsent))
        return placed

    async def _place(
        self,
        batch: Batch,
        queue: MessageQueue | None,
        now_ms: int,
        deadline: float,
        placed: dict[int, SendResult | RocketMQError],
    ) -> bool:
        """Send *batch* and put its outcomes into *placed*; return whether it was stored."""
        try:
            whole = await self._send_one_batch(batch, queue, now_ms, deadline)
        except RocketMQError as error:
            placed.update(dict.fromkeys(batch.places, error))
            return False
        placed.update(batch.results(whole))
        return True

    async def _send_one_batch(
        self, batch: Batch, queue: MessageQueue | None, now_ms: int, deadline: float
    ) -> SendResult:
        size = batch.size
        if not self._room.try_take(size):
            await self._wait_for_room(size, deadline, batch.topic)
        try:
            publish = self._topics.get(batch.topic) or await self._publish(batch.topic, deadline)
            target = publish.target(queue) if queue else publish.next_target()
            sent = batch.outgoing(target, now_ms, fixed=queue is not None)
            return await self._attempts.run(sent, publish, deadline)
        finally:
            self._room.give(size)


def _check_message(message: object) -> None:
    if not isinstance(message, Message):
        raise not_a_message(message)


def checked_timeout(given: float) -> float:
    """Refuse what is no number of seconds above 0.

    :raises ConfigError: it is not
    """
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < MAX_TIMEOUT:
        raise ConfigError(
            "timeout_seconds", given, "expected a number of seconds above 0 and below 1e9"
        )
    return given
