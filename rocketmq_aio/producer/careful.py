"""Sends that need more than a queue whose turn it is: in order, with a delivery time, replies."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from functools import lru_cache, partial
from time import monotonic, time_ns
from typing import Any, Final, NamedTuple

import msgspec

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.functions import check_function, name_of
from rocketmq_aio.config.producer import ProducerConfig
from rocketmq_aio.errors import (
    ClosedError,
    ConfigError,
    NotConnectedError,
    NotSupportedError,
    RocketMQError,
    SendUnknownError,
)
from rocketmq_aio.hooks import SendContext
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.model.message import Message, MessageExt
from rocketmq_aio.model.properties import NAME_END, PAIR_END, SHARDING_KEY
from rocketmq_aio.model.values import MessageQueue, SendResult
from rocketmq_aio.producer.queue_selection import KeyedLock, Lane, OrderedTopic
from rocketmq_aio.producer.registration import Introductions
from rocketmq_aio.producer.request_reply import Requests, replying_target
from rocketmq_aio.producer.send_request import SendRequest, check_sizes, outgoing
from rocketmq_aio.producer.sender import UNUSED_SECONDS, Sender
from rocketmq_aio.producer.topic_publish_info import QueueSelector, SendTarget, TopicPublishInfo
from rocketmq_aio.protocol.codes import V5_0_0, ResponseCode
from rocketmq_aio.protocol.subscription import java_hash

KEYS_REMEMBERED: Final = 8192  # what is worked out once for a key; a hash is a loop over it


class Routing(NamedTuple):
    """How a message goes.

    :ivar aim: returns the queue of the first attempt
    :ivar fixed: all attempts go to that queue
    :ivar extra: properties of the system, in wire form
    :ivar key: sends with one key go one after another
    :ivar asks: it is a request, whose reply its broker is to hand to this client
    :ivar reply: it answers a request
    """

    aim: Callable[[TopicPublishInfo], SendTarget]
    fixed: bool
    extra: str = ""
    key: str | None = None
    asks: bool = False
    reply: bool = False


ANY_QUEUE: Final = Routing(TopicPublishInfo.next_target, False)


class QueueChoice(msgspec.Struct, frozen=True, gc=False):
    """What the arguments of a send say about its queue; one of them at most is given."""

    queue: MessageQueue | None = None
    selector: QueueSelector | None = None
    sharding_key: str | None = None


NOTHING_CHOSEN: Final = QueueChoice()


class CarefulSender(Sender):
    """Base of producers: what `send` does not do on its short way."""

    def __init__(
        self,
        group: str,
        *,
        namesrv: str | None,
        client: MQClientInstance | ClientConfig | None,
        config: ProducerConfig | None,
        hooks: Iterable[object],
    ) -> None:
        super().__init__(group, namesrv=namesrv, client=client, config=config, hooks=hooks)
        self._turns = KeyedLock()
        self._ordered: dict[str, OrderedTopic] = {}
        self._by_key = lru_cache(KEYS_REMEMBERED)(self._way_by_key)
        self._requests = Requests(self._instance)
        self._introductions = Introductions(self._instance)

    def topics(self) -> Iterable[str]:
        """Topics sent to lately; the queues of keys are forgotten with the others."""
        wanted, now = super().topics(), monotonic()
        for topic, known in list(self._ordered.items()):
            # A topic whose route changed is not among the topics until it is sent to again.
            if topic not in self._topics and now - known.used_at > UNUSED_SECONDS:
                del self._ordered[topic]
        return wanted

    async def _shut(self) -> None:
        self._requests.refuse(ClosedError(f"{self!r} is closed"))
        await super()._shut()

    def _way(self, message: Message, chosen: QueueChoice) -> Routing:
        """Return how *message* goes: the arguments of the call win over its own key."""
        queue, selector, key = chosen.queue, chosen.selector, chosen.sharding_key
        if queue is not None or selector is not None:
            if key is not None:
                raise ConfigError("sharding_key", key, "give one of queue=, selector=, and it")
            aim = partial(chosen_target, message=message, queue=queue, selector=selector)
            return Routing(aim, True)
        if key is None and message.sharding_key is None:
            return ANY_QUEUE
        return self._way_of(message, key)

    def _way_of(self, message: Message, key: str | None) -> Routing:
        """Return how *message* goes that has a key of its own, or gets *key*."""
        own = message.sharding_key
        if key is None and own is not None:
            return self._by_key(own, True)
        if type(key) is not str:
            key = checked_key(key)
        if own is not None and key != own:
            raise ConfigError("sharding_key", key, "the message has another one")
        return self._by_key(key, own is not None)

    def _way_by_key(self, key: str, own: bool) -> Routing:
        """Return how messages with *key* go; they have it already if it is their *own*."""
        extra = "" if own else f"{SHARDING_KEY}{NAME_END}{checked_key(key)}{PAIR_END}"
        return Routing(partial(self._ordered_target, java_hash(key)), True, extra, key)

    async def _send_by(self, way: Routing, message: Message, deadline: float) -> SendResult:
        """Send *message* as *way* says, within the bounds on unanswered sends.

        One with a key leaves when all sends of its key before it have ended, however.
        """
        topic, size = message.topic, len(message.body)
        keyed, lane = way.key is not None, (topic, way.key)
        if keyed and not self._turns.try_take(lane):
            await self._wait_for_turn(lane, deadline)
        try:
            if not self._room.try_take(size):
                await self._wait_for_room(size, deadline, topic)
            try:
                publish = self._topics.get(topic)
                if publish is None:
                    check_sizes(message, self._config)
                    publish = await self._publish(topic, deadline)
                if message.timed or way.asks:
                    sent = await self._outgoing_by(way, message, publish, deadline)
                else:
                    sent = self._outgoing_to(way.aim(publish), way, message, publish)
                return await self._attempts.run(sent, publish, deadline)
            finally:
                self._room.give(size)
        finally:
            if keyed:
                self._turns.give(lane)

    async def _outgoing_by(
        self, way: Routing, message: Message, publish: TopicPublishInfo, deadline: float
    ) -> SendRequest:
        target, fixed = way.aim(publish), way.fixed
        if message.timed:
            target, fixed = await self._timed_target(publish, target, fixed, deadline)
        if way.asks:
            await self._introductions.introduce(target.master, deadline)
        sent = self._outgoing_to(target, way, message, publish)
        sent.fixed = fixed
        return sent

    def _outgoing_to(
        self, target: SendTarget, way: Routing, message: Message, publish: TopicPublishInfo
    ) -> SendRequest:
        now_ms = time_ns() // 1_000_000
        message_id = self._ids.next_id(now_ms)
        sent = outgoing(message, target, message_id, now_ms, self._config, way.extra)
        sent.fixed = way.fixed
        sent.reply = way.reply
        return sent

    def _ordered_target(self, value: int, publish: TopicPublishInfo) -> SendTarget:
        known = self._ordered.get(publish.topic)
        if known is None:
            known = self._ordered[publish.topic] = OrderedTopic(publish)
        return known.target(publish, value)

    def _target_at(self, publish: TopicPublishInfo, queue: MessageQueue) -> SendTarget:
        known = self._ordered.get(publish.topic)  # keys stay with a broker that is not there now
        return publish.target(queue, known.last_address(queue) if known is not None else None)

    def _context(
        self, mode: str, message: Message, queue: MessageQueue | None = None
    ) -> SendContext:
        return SendContext(group=self._group, mode=mode, messages=(message,), queue=queue)

    async def _send_oneway(self, message: Message, chosen: QueueChoice) -> None:
        deadline = monotonic() + self._config.send_timeout_seconds
        topic, size = message.topic, len(message.body)
        publish = self._topics.get(topic)
        if publish is None:
            check_sizes(message, self._config)
            publish = await self._publish(topic, deadline)
        publish.used_at = monotonic()
        if not self._room.try_take(size):  # so that `close` waits for it, or refuses it
            await self._wait_for_room(size, deadline, topic)
        try:
            way = self._way(message, chosen)
            sent = await self._outgoing_by(way, message, publish, deadline)
            if sent.packing is not None:
                await self._attempts.packer.pack(sent)
            header = sent.header(publish)
            await self._instance.remoting.oneway(sent.target.address, header, sent.body)
        finally:
            self._room.give(size)

    async def _wait_for_turn(self, lane: Lane, deadline: float) -> None:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                await self._turns.wait_and_take(lane)
        except TimeoutError:
            reason = "a send before it with the same sharding key has not ended"
            raise self._attempts.never_sent(lane[0], NotConnectedError("-", reason)) from None
        try:
            self._check_running()
        except RocketMQError:
            self._turns.give(lane)
            raise

    # --- request and reply ----------------------------------------------------------------------

    async def _request(self, message: Message, chosen: QueueChoice, deadline: float) -> MessageExt:
        request = await self._requests.begin(message, deadline)
        properties = request.properties()

        def send(message: Message) -> Coroutine[Any, Any, SendResult]:
            aim, fixed, extra, key, *_ = self._way(message, chosen)
            way = Routing(aim, fixed, extra + properties, key, asks=True)
            return self._send_by(way, message, deadline)

        try:
            try:
                result = await self._told("request", message, chosen.queue, send)
            except SendUnknownError as error:
                return request.came(error)
            return await request.reply(result.message_id)
        finally:
            self._requests.end(request)

    async def _reply(
        self, request: MessageExt, message: Message, properties: str, deadline: float
    ) -> SendResult:
        way = Routing(partial(replying_target, request), fixed=False, extra=properties, reply=True)

        def send(message: Message) -> Coroutine[Any, Any, SendResult]:
            return self._send_by(way, message, deadline)

        return await self._told("reply", message, None, send)

    def _told(
        self,
        mode: str,
        message: Message,
        queue: MessageQueue | None,
        send: Callable[[Message], Coroutine[Any, Any, SendResult]],
    ) -> Coroutine[Any, Any, SendResult]:
        """Send *message*, or what hooks make of it, with hooks around it if there are some."""
        if not self._hooked:
            return send(message)
        context = self._context(mode, message, queue)
        return self._hooks.around(context, lambda: send(context.message))

    # --- delivery times -------------------------------------------------------------------------

    async def _timed_target(
        self, publish: TopicPublishInfo, target: SendTarget, fixed: bool, deadline: float
    ) -> tuple[SendTarget, bool]:
        """Return a target whose broker keeps delivery times, and whether it has to stay.

        Brokers before 5.0 deliver such a message at once.

        :raises NotSupportedError: no broker keeps them
        """
        versions = self._instance.heartbeats.broker_versions
        unfit: frozenset[str] = frozenset()
        while not await self._keeps_times(target, deadline):
            unfit |= {target.broker_name}
            if fixed or unfit >= publish.brokers:
                raise self._unfit(publish.topic, target)
            target = publish.next_target_avoiding(unfit)
        masters = publish.masters().values()
        return target, fixed or any(versions.get(each, 0) < V5_0_0 for each in masters)

    async def _keeps_times(self, target: SendTarget, deadline: float) -> bool:
        heartbeats = self._instance.heartbeats
        version = heartbeats.broker_versions.get(target.master)
        if version is None:
            try:
                async with asyncio.timeout(deadline - monotonic()):
                    version = await heartbeats.version_of(target.master)
            except TimeoutError:
                return False
        return version is not None and version >= V5_0_0

    def _unfit(self, topic: str, target: SendTarget) -> Exception:
        if self._instance.heartbeats.broker_versions.get(target.master) is None:
            reason = "it does not say whether it keeps delivery times"
            return self._attempts.never_sent(topic, NotConnectedError(target.address, reason))
        remark = "delay_seconds and deliver_at need a broker from 5.0: this one delivers at once"
        return NotSupportedError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, target.address)


def checked_key(key: object) -> str:
    """Return *key*, which an argument gives.

    :raises ConfigError: it is no key
    """
    if not isinstance(key, str) or not key.strip() or NAME_END in key or PAIR_END in key:
        reason = "expected a non-empty string without U+0001 and U+0002"
        raise ConfigError("sharding_key", key, reason)
    return str.__str__(key)


def chosen_target(
    publish: TopicPublishInfo,
    message: Message,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> SendTarget:
    """Return where the caller wants *message* to go."""
    if queue is not None and selector is not None:
        raise ConfigError("selector", selector, "give either queue= or selector=")
    if queue is None:
        assert selector is not None
        queue = _selected(selector, publish, message)
    return publish.target(queue)


def _selected(selector: QueueSelector, publish: TopicPublishInfo, message: Message) -> MessageQueue:
    try:
        queue: object = selector(publish.queues, message)
    except TypeError:
        check_function("selector", selector, "queues", "message")
        raise
    if isinstance(queue, MessageQueue):
        return queue
    if inspect.iscoroutine(queue):
        queue.close()
        reason = "expected a plain function: wait for what it needs before, and give queue="
        raise ConfigError("selector", name_of(selector), reason)
    reason = f"it returned {queue!r}: expected one of the queues that it was given"
    raise ConfigError("selector", name_of(selector), reason)
