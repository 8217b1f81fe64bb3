"""Watches over a group: members that subscribe differently, or pass for one another, lose messages.

The broker keeps one subscription per topic for a whole group, and nothing warns when members
disagree about it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from random import uniform
from time import monotonic
from typing import Final, Generic, TypeVar

import anyio

from rocketmq_aio.consumer.events import (
    ClientIdNotUnique,
    ConsumerEvent,
    SubscriptionMatchesNothing,
    SubscriptionsDiffer,
)
from rocketmq_aio.errors import (
    AuthError,
    NotSupportedError,
    PermissionDeniedError,
    RocketMQError,
)
from rocketmq_aio.instance.instance import MQClientInstance
from rocketmq_aio.log import get_logger
from rocketmq_aio.names import RETRY_PREFIX
from rocketmq_aio.protocol.bodies import SubscriptionData
from rocketmq_aio.protocol.requests.connections import ConsumerConnections
from rocketmq_aio.protocol.subscription import ALL, Subscription

logger = get_logger(__name__)

K = TypeVar("K", bound=Hashable)

CHECK_SECONDS: Final = 60.0
FIRST_CHECK_SECONDS: Final = 10.0
# Heartbeats of members change the broker's table in turn, always at the same distance: checks at
# a fixed distance could see the same member's table for ever.
LATER_BY_UP_TO: Final = 0.5  # of the interval
ALL_CHECKS: Final = 0b1111  # those that are remembered
DIFFERS_TIMES: Final = 2  # a change of all members takes a while, and is no fault
# An old connection that was cut is listed for 120 s; three checks are more apart.
NOT_UNIQUE_TIMES: Final = 3
NOTHING_MESSAGES: Final = 1000
NOTHING_SECONDS: Final = 60.0


class GroupCheck:
    """Asks one broker of the group now and then, and tells each fault once until it is gone.

    :param subscriptions: what this consumer wants now
    :param on_event: called with `SubscriptionsDiffer`, `ClientIdNotUnique` and
        `SubscriptionMatchesNothing`
    """

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        *,
        subscriptions: Callable[[], Iterable[Subscription]],
        on_event: Callable[[ConsumerEvent], None],
    ) -> None:
        self.matches = MatchWatch()
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._on_event = on_event
        self._refused = False
        self._differences: Recurring[SubscriptionsDiffer] = Recurring(DIFFERS_TIMES)
        self._namesakes: Recurring[ClientIdNotUnique] = Recurring(NOT_UNIQUE_TIMES)

    async def keep_checking(self, interval_seconds: float = CHECK_SECONDS) -> None:
        """Check, for ever; a broker that cannot be asked now is asked the next time."""
        await anyio.sleep(min(FIRST_CHECK_SECONDS, interval_seconds))
        while True:
            await self.check()
            await anyio.sleep(interval_seconds * uniform(1, 1 + LATER_BY_UP_TO))

    async def check(self) -> None:
        """Look once; failures of the request are logged."""
        wanted = {each.topic: each for each in self._subscriptions() if not _is_retry(each.topic)}
        for barren in self.matches.barren(wanted.values(), monotonic()):
            self._tell("subscription_matches_nothing", barren)
        if wanted and not self._refused and (found := await self._ask(wanted)) is not None:
            self._compare(wanted, found)

    async def _ask(self, topics: Iterable[str]) -> ConsumerConnections | None:
        address = self._broker_of(topics)
        if address is None:
            return None
        try:
            return await self._instance.broker.consumer_connections(self._group, address)
        except (AuthError, PermissionDeniedError, NotSupportedError) as error:
            self._refused = True  # who may consume need not be allowed to ask this
            logger.debug("group_check_refused", group=self._group, reason=str(error))
        except RocketMQError as error:
            logger.debug("group_check_failed", group=self._group, reason=str(error))
        return None

    def _broker_of(self, topics: Iterable[str]) -> str | None:
        """Return always the same broker, for each sees other addresses; connected already."""
        routes = [self._instance.routes.known(topic) for topic in sorted(topics)]
        brokers = [each for route in routes if route for each in sorted(route.brokers.items())]
        addresses = [address for _, by_id in brokers for _, address in sorted(by_id.items())]
        return next(filter(self._instance.remoting.is_connected, addresses), None)

    def _compare(self, wanted: dict[str, Subscription], found: ConsumerConnections) -> None:
        own = self._instance.client_id
        addresses = [each.client_addr for each in found.connection_set if each.client_id == own]
        if not addresses:
            return  # the broker was restarted and does not know this member yet
        for difference in self._differences.seen(differences(wanted, found.subscription_table)):
            self._tell("subscriptions_differ", difference)
        for namesake in self._namesakes.seen(namesakes(own, addresses)):
            self._tell("client_id_not_unique", namesake)

    def _tell(self, name: str, event: ConsumerEvent) -> None:
        logger.warning(name, group=self._group, event_value=repr(event))
        self._on_event(event)


def differences(
    wanted: dict[str, Subscription], table: dict[str, SubscriptionData]
) -> list[SubscriptionsDiffer]:
    """Return the topics about which this member and the broker's table for the group disagree."""
    theirs = {topic: each for topic, each in table.items() if not _is_retry(topic)}
    return [
        SubscriptionsDiffer(
            topic=topic,
            ours=_text(ours.kind, ours.expression) if ours else None,
            theirs=_text(other.expression_type, other.sub_string) if other else None,
        )
        for topic in sorted(wanted.keys() | theirs.keys())
        if not _agree(ours := wanted.get(topic), other := theirs.get(topic))
    ]


def namesakes(client_id: str, addresses: list[str]) -> list[ClientIdNotUnique]:
    """Return the fault that one client id comes from several *addresses*, if it does."""
    several = tuple(sorted(set(addresses)))
    return [ClientIdNotUnique(client_id=client_id, addresses=several)] if len(several) > 1 else []


def _agree(ours: Subscription | None, theirs: SubscriptionData | None) -> bool:
    if ours is None or theirs is None or ours.kind != theirs.expression_type:
        return False
    if ours.is_sql:
        return ours.expression.strip() == theirs.sub_string.strip()
    tags = {tag.strip() for tag in theirs.sub_string.split("||")} - {"", ALL}
    return ours.tags == tags


def _is_retry(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def _text(kind: str, expression: str) -> str:
    return expression if kind == "TAG" else f"{kind}: {expression}"


class Recurring(Generic[K]):
    """Tells what was seen in so many of the last checks; once, until it was gone for all."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._checks: dict[K, int] = {}  # the lowest bit is the last check
        self._told: set[K] = set()

    def seen(self, faults: Iterable[K]) -> list[K]:
        """Note the faults of one check; return those that are to be told now."""
        present = set(faults)
        for each in {**self._checks, **dict.fromkeys(present)}:
            checks = (self._checks.get(each, 0) << 1 | (each in present)) & ALL_CHECKS
            if checks:
                self._checks[each] = checks
            else:
                del self._checks[each]
                self._told.discard(each)
        enough = [each for each, bits in self._checks.items() if bits.bit_count() >= self._times]
        news = [each for each in enough if each not in self._told]
        self._told.update(news)
        return news


@dataclass(slots=True)
class _Barren:
    messages: int = 0
    text: str | None = None  # of the expression, and since when it is watched
    since: float = 0.0
    told: bool = False


class MatchWatch:
    """Counts what was read of topics with a filter since something last came through it."""

    def __init__(self) -> None:
        self._topics: dict[str, _Barren] = {}

    def note(self, topic: str, advanced: int, matched: int) -> None:
        """A pull went on by *advanced* offsets and brought *matched* messages."""
        if matched:
            self._topics.pop(topic, None)
            return
        barren = self._topics.get(topic)
        if barren is None:
            barren = self._topics[topic] = _Barren()
        barren.messages += advanced

    def barren(
        self, wanted: Iterable[Subscription], now: float
    ) -> list[SubscriptionMatchesNothing]:
        """Return the filters that nothing comes through; each is told once until something does."""
        return [
            SubscriptionMatchesNothing(
                topic=each.topic, expression=_text(each.kind, each.expression), messages=messages
            )
            for each in wanted
            if (each.tags or each.is_sql) and (messages := self._read_in_vain(each, now))
        ]

    def _read_in_vain(self, wanted: Subscription, now: float) -> int:
        barren = self._topics.get(wanted.topic)
        if barren is None:
            return 0
        text = _text(wanted.kind, wanted.expression)
        if barren.text != text:
            messages = barren.messages if barren.text is None else 0  # those of another expression
            self._topics[wanted.topic] = _Barren(messages, text, now)
            return 0
        enough = barren.messages >= NOTHING_MESSAGES and now - barren.since >= NOTHING_SECONDS
        if barren.told or not enough:
            return 0
        barren.told = True
        return barren.messages
