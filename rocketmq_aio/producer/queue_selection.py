"""Queue selection: the queue of a message, by round-robin, argument, selector or sharding key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from functools import lru_cache, partial
from time import monotonic
from typing import Final, NamedTuple

import msgspec

from rocketmq_aio.config.validation import check_function, name_of
from rocketmq_aio.errors import ConfigError, InvalidMessageError, RouteNotFoundError
from rocketmq_aio.model.message import Message
from rocketmq_aio.model.properties import NAME_END, PAIR_END, PRIORITY, SHARDING_KEY
from rocketmq_aio.model.values import MessageQueue
from rocketmq_aio.producer.topic_publish_info import (
    UNUSED_SECONDS,
    QueueSelector,
    SendTarget,
    TopicPublishInfo,
)
from rocketmq_aio.protocol.subscription import java_hash

# Topic and sharding key; such sends run one after another.  In batches those without a key, too.
OrderKey = tuple[str, str | None]

KEYS_CACHED: Final = 8192  # routings of keys; hashing a key is a loop over its characters


class Routing(NamedTuple):
    """How one message is sent.

    :ivar select_target: returns the queue of the first attempt
    :ivar fixed: retries keep that queue
    :ivar extra: system properties to add, in wire form
    :ivar key: sends with the same key run one after another
    :ivar is_request: the broker sends the reply back to this client
    :ivar is_reply: the message is the reply to a request
    """

    select_target: Callable[[TopicPublishInfo], SendTarget]
    fixed: bool
    extra: str = ""
    key: str | None = None
    is_request: bool = False
    is_reply: bool = False


ANY_QUEUE: Final = Routing(TopicPublishInfo.next_target, False)


def routing_to(queue: MessageQueue | None) -> Routing:
    """Return how a message to *queue*, or to any one, is sent."""
    return (
        ANY_QUEUE if queue is None else Routing(partial(TopicPublishInfo.target, queue=queue), True)
    )


class QueueChoice(msgspec.Struct, frozen=True, gc=False):
    """The arguments of a send that choose its queue; at most one is given."""

    queue: MessageQueue | None = None
    selector: QueueSelector | None = None
    sharding_key: str | None = None


NO_CHOICE: Final = QueueChoice()
ONE_CHOICE: Final = "give only one of queue=, selector= and sharding_key="


class QueueSelection:
    def __init__(self) -> None:
        self.sharded: dict[str, ShardedTopic] = {}
        self.by_key = lru_cache(KEYS_CACHED)(self._routing_of_key)

    def routing(self, message: Message, choice: QueueChoice) -> Routing:
        """Return how *message* is sent: the arguments of the call win over its own key."""
        queue, selector, key = choice.queue, choice.selector, choice.sharding_key
        if queue is not None or selector is not None:
            if key is not None:
                raise ConfigError("sharding_key", key, ONE_CHOICE)
            check_no_priority(message)
            select = partial(chosen_target, message=message, queue=queue, selector=selector)
            return Routing(select, True)
        if key is None and message.sharding_key is None:
            return ANY_QUEUE
        return self.routing_by_key(message, key)

    def routing_by_key(self, message: Message, key: str | None) -> Routing:
        """Return how *message* is sent, which has a sharding key or gets *key*."""
        own = message.sharding_key
        if key is None and own is not None:
            return self.by_key(own, True)
        check_no_priority(message)
        if type(key) is not str:
            key = checked_key(key)
        if own is not None and key != own:
            raise ConfigError("sharding_key", key, "the message has another one")
        return self.by_key(key, own is not None)

    def target_of(self, publish: TopicPublishInfo, queue: MessageQueue) -> SendTarget:
        """Return how to send to *queue*, also while its broker has no master."""
        sharded = self.sharded.get(publish.topic)
        return publish.target(queue, sharded.last_address(queue) if sharded is not None else None)

    def forget_unused(self, in_use: Container[str]) -> None:
        """Drop the queues of topics that are not *in_use* and were not sent to lately."""
        now = monotonic()
        for topic, sharded in list(self.sharded.items()):
            # A topic without a route is not in use until it is sent to again.
            if topic not in in_use and now - sharded.publish.used_at > UNUSED_SECONDS:
                del self.sharded[topic]

    def _routing_of_key(self, key: str, own: bool) -> Routing:
        """Return how messages with *key* are sent; *own*: they have it among their properties."""
        extra = "" if own else f"{SHARDING_KEY}{NAME_END}{checked_key(key)}{PAIR_END}"
        # Java: the remainder has the sign of the hash, and its absolute value is taken.
        return Routing(partial(self._target_of_hash, abs(java_hash(key))), True, extra, key)

    def _target_of_hash(self, value: int, publish: TopicPublishInfo) -> SendTarget:
        """Return the target of keys with the hash *value*, also if its broker does not answer.

        :raises RouteNotFoundError: the queue is not writable now
        """
        sharded = self.sharded.get(publish.topic)
        if sharded is None:
            sharded = self.sharded[publish.topic] = ShardedTopic(publish)
        elif sharded.publish is not publish:
            sharded.update(publish)
        targets = sharded.targets
        index = value % len(targets)
        return targets[index] or sharded.find(index)


class ShardedTopic:
    """The queues over which the sharding keys of one topic are spread.

    They come from the first route and stay: brokers that fail, become read-only, are added or get
    more queues do not move a key.  Only when an administrator removes one of the queues is the
    list replaced.
    """

    def __init__(self, publish: TopicPublishInfo) -> None:
        self.queues = publish.ordered_queues
        self._addresses: dict[str, str] = {}
        self.update(publish)

    def update(self, publish: TopicPublishInfo) -> None:
        """Use the queues of a new route."""
        self.publish = publish
        self._addresses |= publish.masters()
        current = set(publish.ordered_queues)
        brokers = {queue.broker_name for queue in current}
        if any(q.broker_name in brokers and q not in current for q in self.queues):
            self.queues = publish.ordered_queues
        self.targets: list[SendTarget | None] = [None] * len(self.queues)

    def find(self, index: int) -> SendTarget:
        """Return the target of the queue at *index*, and keep it in `targets`."""
        queue = self.queues[index]
        if self.publish.is_closed(queue):
            reason = f"queue {queue} may not be written to, and its keys go nowhere else"
            raise RouteNotFoundError(self.publish.topic, reason)
        found = self.publish.target(queue, self.last_address(queue))
        self.targets[index] = found
        return found

    def last_address(self, queue: MessageQueue) -> str | None:
        return self._addresses.get(queue.broker_name)


def check_no_priority(message: Message) -> None:
    """Validate *message* as one whose queue the caller chooses.

    :raises InvalidMessageError: it has a priority, by which the broker chooses the queue
    """
    if PRIORITY in message.properties:
        reason = "brokers choose the queue by priority=: leave out queue=, selector=, sharding_key="
        raise InvalidMessageError(message.topic, reason)


def checked_key(key: object) -> str:
    """Return *key*, an argument of a send.

    :raises ConfigError: it is not a valid key
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
    if selector is None:
        assert queue is not None
        return publish.target(queue)
    if queue is not None:
        raise ConfigError("selector", selector, "give either queue= or selector=")
    try:
        selected: object = selector(publish.queues, message)
    except TypeError:
        check_function("selector", selector, "queues", "message")
        raise
    if isinstance(selected, MessageQueue):
        return publish.target(selected)
    reason = f"it returned {selected!r}: expected one of the queues that it was given"
    if inspect.iscoroutine(selected):
        selected.close()
        reason = "expected a plain function: await what it needs before, and give queue="
    raise ConfigError("selector", name_of(selector), reason)
