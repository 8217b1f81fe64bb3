"""Request and reply: a message that waits for an answer, and the answer."""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Final

from rocketmq_aio.errors import ConfigError, ReplyTimeoutError, SendUnknownError
from rocketmq_aio.instance.instance import MQClientInstance
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
from rocketmq_aio.producer.in_flight import InFlightLimiter
from rocketmq_aio.producer.topic_publish_info import SendTarget, TopicPublishInfo

# Fewer than the requests of brokers that are queued here: their replies may come all at once.
MAX_REQUESTS: Final = 900
ID_BYTES: Final = 16  # random, so that nobody can guess whose reply is awaited


class Requests:
    """The requests of one producer."""

    def __init__(self, instance: MQClientInstance) -> None:
        self._instance = instance
        self._places = InFlightLimiter(MAX_REQUESTS, MAX_REQUESTS)
        self._open: set[Request] = set()

    async def begin(self, message: Message, deadline: float) -> Request:
        """Return a new request, once there is a place for it.

        :raises ReplyTimeoutError: there was none until *deadline*; nothing was sent
        """
        if not self._places.try_take(1):
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    await self._places.wait_and_take(1)
            except TimeoutError:
                reason = f"not sent: {MAX_REQUESTS} requests are waiting for their replies"
                raise ReplyTimeoutError(message.topic, None, reason) from None
        request = Request(self._instance, message, deadline)
        self._open.add(request)
        return request

    def end(self, request: Request) -> None:
        """A request has ended, however: what comes now is late."""
        request.forget()
        self._open.discard(request)
        self._places.give(1)

    def refuse(self, error: Exception) -> None:
        """End with *error* what waits for a place or for its reply."""
        self._places.refuse(error)
        for request in self._open:
            request.fail(error)


class Request:
    """One request, until `Requests.end`."""

    def __init__(self, instance: MQClientInstance, message: Message, deadline: float) -> None:
        self._replies = instance.replies
        self._topic = message.topic
        self._deadline = deadline
        self._started = monotonic()
        self._id = secrets.token_hex(ID_BYTES)
        self._reply = self._replies.expect(self._id, deadline)
        self._client_id = instance.client_id

    def properties(self) -> str:
        """Return what tells the other side whom to answer, in wire form."""
        seconds = self._deadline - self._started
        ttl = max(1, int(seconds * 1000))
        return (
            f"{CORRELATION_ID}\x01{self._id}\x02"
            f"{REPLY_TO_CLIENT}\x01{self._client_id}\x02{TTL}\x01{ttl}\x02"
        )

    def came(self, error: SendUnknownError) -> MessageExt:
        """Return the reply that came although the send seemed to fail; else raise *error*."""
        reply = self._reply
        if reply.done() and not reply.exception() and (message := reply.result()) is not None:
            return message
        raise error

    async def reply(self, message_id: str) -> MessageExt:
        """Wait for the reply.

        :raises ReplyTimeoutError: it did not come in time
        """
        message = await self._reply
        if message is None:
            seconds = self._deadline - self._started
            reason = f"no reply within {seconds:.3g} s; it was sent, and may have been worked on"
            raise ReplyTimeoutError(self._topic, message_id, reason)
        return message

    def fail(self, error: Exception) -> None:
        """Let who waits, or will, have *error*."""
        if not self._reply.done():
            self._reply.set_exception(error)

    def forget(self) -> None:
        """Leave the table."""
        self._replies.forget(self._id)
        if self._reply.done() and not self._reply.cancelled():
            self._reply.exception()  # which nobody may have asked for


# --- replies --------------------------------------------------------------------------------------


def how_to_reply(request: object) -> tuple[str, str]:
    """Return the topic of replies to *request*, and what makes a message one, in wire form.

    :raises ConfigError: it is no request
    """
    if not isinstance(request, MessageExt):
        raise ConfigError("request", type(request).__name__, "expected a received message")
    cluster, correlation_id = request.property(CLUSTER), request.property(CORRELATION_ID)
    client, ttl = request.property(REPLY_TO_CLIENT), request.property(TTL)
    if not (cluster and correlation_id and client):
        reason = "it was not sent as a request: it does not say whom to answer"
        raise ConfigError("request", request, reason)
    properties = {MSG_TYPE: "reply", CORRELATION_ID: correlation_id, REPLY_TO_CLIENT: client}
    if ttl:
        properties[TTL] = ttl
    return cluster + REPLY_TOPIC_SUFFIX, encode_properties(properties)


def replying_target(request: MessageExt, publish: TopicPublishInfo) -> SendTarget:
    """Return a queue on the broker that stored *request*: who asked is connected to it."""
    return publish.target_on(request.queue.broker_name) or publish.next_target()
