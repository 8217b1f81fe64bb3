"""Request-reply: sends requests, waits for their replies, sends replies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Coroutine
from copy import copy
from functools import partial
from time import monotonic
from typing import Any, Final

from rocketmq_aio.errors import ConfigError, ReplyTimeoutError, SendUnknownError
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.names import REPLY_TOPIC_SUFFIX
from rocketmq_aio.model.properties import (
    CLUSTER,
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    encode_properties,
)
from rocketmq_aio.model.values import SendResult
from rocketmq_aio.producer.hooks import SendHooks
from rocketmq_aio.producer.in_flight import InFlightLimiter
from rocketmq_aio.producer.queue_selection import QueueChoice, Routing
from rocketmq_aio.producer.sender import Sender
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo

# Fewer than the inbound requests that are queued: all replies may arrive at once.
MAX_REQUESTS: Final = 900
ID_BYTES: Final = 16  # random: a correlation id must not be guessable


class RequestReply:
    """The requests of one producer that wait for their replies, and the sends of both."""

    def __init__(self, sender: Sender, hooks: SendHooks) -> None:
        self._sender = sender
        self._instance = sender.instance
        self._hooks = hooks
        self._limiter = InFlightLimiter(MAX_REQUESTS, MAX_REQUESTS)
        self._pending: set[asyncio.Future[MessageExt | None]] = set()

    async def request(self, message: Message, choice: QueueChoice, deadline: float) -> MessageExt:
        """Send *message* and return the reply; see `Producer.request`."""
        await self._acquire(message, deadline)
        started, correlation_id = monotonic(), secrets.token_hex(ID_BYTES)
        ttl = max(1, int((deadline - started) * 1000))
        properties = (
            f"{CORRELATION_ID}\x01{correlation_id}\x02"
            f"{REPLY_TO_CLIENT}\x01{self._instance.client_id}\x02{TTL}\x01{ttl}\x02"
        )
        reply = self._instance.replies.expect(correlation_id, deadline)
        self._pending.add(reply)

        def send(message: Message) -> Coroutine[Any, Any, SendResult]:
            routing = self._sender.selection.routing(message, choice)
            routing = routing._replace(extra=routing.extra + properties, is_request=True)
            return self._sender.send(message, routing, deadline)

        try:
            try:
                result = await self._hooks.around_message("request", message, choice.queue, send)
            except SendUnknownError:
                received = reply.result() if reply.done() and not reply.exception() else None
                if received is None:
                    raise
                return received  # it arrived although the send failed
            received = await reply
            if received is None:
                waited = f"no reply within {deadline - started:.3g} s"
                reason = f"{waited}; it was sent, and may have been worked on"
                raise ReplyTimeoutError(message.topic, result.message_id, reason)
            return received
        finally:
            self._instance.replies.forget(correlation_id)  # a later reply counts as dropped
            if reply.done() and not reply.cancelled():
                reply.exception()  # retrieved, or asyncio would log it
            self._pending.discard(reply)
            self._limiter.release(1)

    def reply(
        self, request: MessageExt, body: bytes, fields: dict[str, Any], deadline: float
    ) -> Coroutine[Any, Any, SendResult]:
        """Send the reply to *request*; see `Producer.reply`."""
        topic, properties = reply_properties(request)
        self._instance.remoting.share(topic)
        routing = Routing(partial(reply_target, request), False, properties, is_reply=True)
        send = partial(self._sender.send, routing=routing, deadline=deadline)
        return self._hooks.around_message("reply", Message(topic, body, **fields), None, send)

    def close(self, error: Exception) -> None:
        """Make all requests, waiting and later ones, raise *error*."""
        self._limiter.close(error)
        for reply in self._pending:
            if not reply.done():
                reply.set_exception(copy(error))  # a copy: raising changes an error

    async def _acquire(self, message: Message, deadline: float) -> None:
        if not self._limiter.try_acquire(1):
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    await self._limiter.wait_and_acquire(1)
            except TimeoutError:
                reason = f"not sent: {MAX_REQUESTS} requests are waiting for their replies"
                raise ReplyTimeoutError(message.topic, None, reason) from None


def reply_properties(request: object) -> tuple[str, str]:
    """Return the topic and the properties, in wire form, of a reply to *request*.

    :raises ConfigError: it is not a request
    """
    if not isinstance(request, MessageExt):
        raise ConfigError("request", type(request).__name__, "expected a received message")
    cluster, correlation_id = request.property(CLUSTER), request.property(CORRELATION_ID)
    client, ttl = request.property(REPLY_TO_CLIENT), request.property(TTL)
    if not (cluster and correlation_id and client):
        reason = "it was not sent as a request: it has no reply address"
        raise ConfigError("request", request, reason)
    properties = {MSG_TYPE: "reply", CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client}
    if ttl:
        properties[TTL] = ttl
    return cluster + REPLY_TOPIC_SUFFIX, encode_properties(properties)


def reply_target(request: MessageExt, publish: TopicPublishInfo) -> SendTarget:
    """Return a queue on the broker that stored *request*: the requester is connected to it."""
    return publish.target_on(request.queue.broker_name) or publish.next_target()
