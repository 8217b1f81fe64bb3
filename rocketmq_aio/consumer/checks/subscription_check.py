"""Subscription check: detects members that differ in subscriptions or mode, or share a client id.

A broker keeps one subscription per topic for a group: that of the member that subscribed last.  So
its table shows a difference to some members only; the member that subscribed last sees its own
subscriptions.  Members therefore also query each other: brokers forward GET_CONSUMER_RUNNING_INFO
to the client with a given id.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Final, TypeAlias

import anyio
import msgspec

from rocketmq_aio.consumer.checks.fault_history import UNPROVEN_SECONDS, FaultHistory
from rocketmq_aio.consumer.checks.filter_matches import FilterMatches, expression_text
from rocketmq_aio.consumer.common.context import ConsumerContext
from rocketmq_aio.consumer.common.events import (
    ClientIdNotUnique,
    MembersDiffer,
    SubscriptionsDiffer,
)
from rocketmq_aio.errors import AuthError, NotSupportedError, PermissionDeniedError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.names import RETRY_PREFIX
from rocketmq_aio.model.values import MessageModel
from rocketmq_aio.protocol.bodies import ConsumerRunningInfo, SubscriptionData
from rocketmq_aio.protocol.requests.groups import ConnectionBody, ConsumerConnections, MemberState
from rocketmq_aio.protocol.subscription import ALL, Subscription
from rocketmq_aio.remoting.gather import gather_limited

logger = get_logger(__name__)

Difference: TypeAlias = SubscriptionsDiffer | MembersDiffer
Fault: TypeAlias = Difference | ClientIdNotUnique

EVENT_NAMES: Final[dict[type[Fault], str]] = {
    ClientIdNotUnique: "client_id_not_unique",
    MembersDiffer: "members_differ",
    SubscriptionsDiffer: "subscriptions_differ",
}

CHECK_SECONDS: Final = 60.0
# Heartbeats of members change the broker's table at fixed intervals: checks at a fixed interval
# could always see the table of the same member.
LATER_BY_UP_TO: Final = 0.5  # of the interval
# Between checks, longer in groups of more than 16: all members check after each change.
LEAST_SECONDS: Final = 1.0  # a flood of notifications is one check
SETTLING_SECONDS: Final = 2.0  # after a join
PENDING_SECONDS: Final = 10.0  # between checks while a fault is not reported yet
SMALL_GROUP: Final = 16
# A member that does not respond blocks one of the 16 threads that a broker has for such requests,
# for 10 s: few are queried at once, by few members, and a silent one is not queried again.
QUERIES_AT_ONCE: Final = 4
QUERY_SECONDS: Final = 3.0
ENOUGH_RESPONSES: Final = 3  # from a member with the same subscriptions
MAX_OWN_QUERIES: Final = 3  # about this member's own id, after each change of its addresses
PYTHON: Final = "PYTHON"
QUERYABLE: Final = frozenset({"JAVA", PYTHON, "GO"})  # languages whose clients respond
MODEL: Final = "messageModel"  # this and the next are properties of Java's running info
ORDERLY: Final = "PROP_CONSUMEORDERLY"  # Java's spelling
SETTING_NAMES: Final = {MODEL: "message_model", ORDERLY: "orderly"}
CHECK_ID: Final = "PROP_GROUP_CHECK_ID"
DEPARTED: Final = "PROP_MEMBER_LEFT_SECONDS_AGO"
UNSUBSCRIBED_SECONDS: Final = 30.0  # after the start; then a consumer without topics is reported
PROOF_SECONDS: Final = 15.0  # how long a proof that another process uses this client id is valid


class SubscriptionCheck:
    """Compares this member with its group; reports each fault once, again after it was gone.

    :param subscriptions: what this consumer shares with its group; None: all its subscriptions
    :param unique_ids: whether members with one client id disturb each other
    """

    def __init__(
        self,
        context: ConsumerContext[object],
        *,
        subscriptions: Callable[[], Iterable[Subscription]] | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        orderly: bool = False,
        unique_ids: bool = True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.matches = FilterMatches()
        self._instance = context.instance
        self._group = context.group
        self._topics: Collection[str] = context.subscriptions
        self._subscriptions = subscriptions or context.subscriptions.values
        self._report = partial(context.warn, group=context.group)
        self._settings = shared_settings(message_model, orderly=orderly)
        self._unique_ids = unique_ids
        self._clock = clock
        self._report_unsubscribed_at: float | None = None  # since the first check
        self._denied = False  # this account may not list the members
        self._wake = asyncio.Event()
        self._id: str | None = None  # made on first use: a fork must not copy it
        self._history: FaultHistory[Fault] | None = None  # since the first check
        self._peers: dict[str, _Peer] = {}
        self._namesake_proven: float | None = None
        self._own_addresses: set[str] = set()
        self._own_queries = 0  # since the addresses changed
        # What responses were compared with: own subscriptions, and differences from the table.
        self._basis: tuple[object, list[Difference]] = ((), [])
        self._connection: int | None = None  # number of the connection to the broker
        self._reconnected: float | None = None  # when it was replaced

    def wake(self) -> None:
        self._wake.set()

    async def keep_checking(self, interval_seconds: float = CHECK_SECONDS) -> None:
        """Check until cancelled; a failed request is repeated at the next check."""
        while True:
            self._wake.clear()
            await self.check()
            await anyio.sleep(min(LEAST_SECONDS * self._group_factor, interval_seconds))
            with anyio.move_on_after(self._pause(interval_seconds)):
                await self._wake.wait()

    def _pause(self, interval_seconds: float) -> float:
        regular = interval_seconds * random.uniform(1, 1 + LATER_BY_UP_TO)
        if self._history is None or self._denied:
            return regular
        if self._history.is_settling(self._clock()):
            return min(regular, (SETTLING_SECONDS - LEAST_SECONDS) * self._group_factor)
        return min(regular, PENDING_SECONDS) if self._history.has_pending() else regular

    @property
    def _group_factor(self) -> float:
        return max(1.0, len(self._peers) / SMALL_GROUP)

    async def check(self) -> None:
        if self._report_unsubscribed_at is None:
            self._report_unsubscribed_at = self._clock() + UNSUBSCRIBED_SECONDS
        elif self._clock() >= self._report_unsubscribed_at:
            self._report_unsubscribed_at = math.inf  # once
            if all(map(_is_retry, self._topics)):
                logger.warning("not_subscribed", group=self._group, reason="it reads no topic")
        wanted = {each.topic: each for each in self._subscriptions() if not _is_retry(each.topic)}
        for unmatched in self.matches.unmatched(wanted.values(), self._clock()):
            self._report("subscription_matches_nothing", unmatched)
        if not wanted or self._denied:
            return
        address = self._broker_of(wanted)
        if address is None:
            return
        members = await self._connections(address)
        if members is not None:
            await self._compare(wanted, members, address)

    async def _connections(self, address: str) -> ConsumerConnections | None:
        try:
            return await self._instance.broker.consumer_connections(self._group, address)
        except (AuthError, PermissionDeniedError, NotSupportedError) as error:
            self._denied = True  # a consumer's account may lack this permission
            logger.debug("group_check_refused", group=self._group, reason=str(error))
        except RocketMQError as error:
            logger.debug("group_check_failed", group=self._group, reason=str(error))
        return None

    def _broker_of(self, topics: Iterable[str]) -> str | None:
        """Return one connected broker, always the same: each sees other client addresses."""
        routes = [self._instance.routes.known(topic) for topic in sorted(topics)]
        brokers = [each for route in routes if route for each in sorted(route.brokers.items())]
        addresses = [address for _, by_id in brokers for _, address in sorted(by_id.items())]
        return next(filter(self._instance.remoting.is_connected, addresses), None)

    async def _compare(
        self, wanted: Mapping[str, Subscription], members: ConsumerConnections, address: str
    ) -> None:
        own = self._instance.client_id
        connections, theirs = members.connection_set, members.subscription_table
        addresses = [each.client_addr for each in connections if each.client_id == own]
        if not addresses:
            return  # the restarted broker does not know this member yet
        others = {each.client_id: each for each in connections if each.client_id != own}
        if self._history is None:
            self._history = FaultHistory(self._clock())
        self._history.note_members({*others, *addresses}, self._clock())
        if set(addresses) != self._own_addresses:
            self._own_addresses, self._own_queries = set(addresses), 0
        shared = namesakes(own, addresses) if self._unique_ids else []
        table: list[Difference] = [*differences(wanted, theirs)] if theirs else []
        table += self._differing_settings({MODEL: members.message_model})
        self._begin_sample(wanted, others, table)
        faults: list[Fault] = [*shared]
        if not self._was_reconnected(address):
            faults += await self._query_peers(wanted, _queryable(connections), address)
            if shared:
                await self._query_own_id(address)
        if shared or not self._all_agree(others):
            faults += table
        unproven = () if self._has_namesake() else shared
        for fault in self._history.note_faults(faults, self._clock(), unproven=unproven):
            self._report(EVENT_NAMES[type(fault)], fault)

    def _begin_sample(
        self, wanted: Mapping[str, Subscription], others: Iterable[str], table: list[Difference]
    ) -> None:
        self._peers = {name: self._peers.get(name) or _Peer() for name in others}
        basis = tuple(sorted((each.topic, each.kind, each.expression) for each in wanted.values()))
        if (basis, table) != self._basis:  # changed: members that agreed may differ now
            self._basis = basis, table
            for peer in self._peers.values():
                peer.responses = 0

    def _all_agree(self, others: Mapping[str, ConnectionBody]) -> bool:
        """Whether all members agree, so that only the broker's table is outdated.

        Python members send their expressions with each pull; others depend on the table.
        """
        agreeing = {name for name, peer in self._peers.items() if peer.responses}
        return all(o.language == PYTHON and name in agreeing for name, o in others.items())

    def _was_reconnected(self, address: str) -> bool:
        """Whether the connection is so new that the broker may still list the old one.

        After a network partition this applies to all members at once.
        """
        number, now = self._instance.connection_number(address), self._clock()
        if self._connection not in (None, number):
            self._reconnected = now
        self._connection = number
        return self._reconnected is not None and now - self._reconnected < UNPROVEN_SECONDS

    async def _query_peers(
        self, wanted: Mapping[str, Subscription], queryable: Collection[str], address: str
    ) -> list[Difference]:
        """Query some of the other members; return the differences."""
        share = QUERIES_AT_ONCE / max(QUERIES_AT_ONCE, len(self._peers))
        peers = self._peers.items()
        names = [n for n, p in peers if p.is_open and n in queryable and random.random() < share]

        async def query(name: str) -> list[Difference]:
            peer = self._peers[name]
            state = await self._state_of(name, address)
            peer.silent = state is None
            if state is None:
                peer.responses = 0
                return []
            self._note_departure(state)
            table = {each.topic: each for each in state.subscription_set}
            found: list[Difference] = []
            if table:  # else it subscribes soon
                found += differences(wanted, table)
                found += self._differing_settings(state.properties)
            peer.responses = peer.responses + 1 if table and not found else 0
            return found

        chosen = random.sample(names, min(len(names), QUERIES_AT_ONCE))
        results = (await gather_limited(query, chosen)).results
        return [each for differing in results.values() for each in differing]

    def _differing_settings(self, properties: Mapping[str, str]) -> list[MembersDiffer]:
        """Return the settings in another member's *properties* that this one has otherwise."""
        return [
            MembersDiffer(setting=SETTING_NAMES[name], ours=ours, theirs=theirs)
            for name, ours in self._settings.items()
            if (theirs := properties.get(name)) and theirs != ours
        ]

    async def _query_own_id(self, address: str) -> None:
        """Query this member's own id: of the members with it always the same one responds.

        If that is this member, the other one detects it by its own query, whose check id differs.
        """
        if self._has_namesake() or self._own_queries >= MAX_OWN_QUERIES:
            return
        self._own_queries += 1
        state = await self._state_of(self._instance.client_id, address, check_id=self.check_id)
        if state is None:
            # The broker forwards to a closed connection that it still lists.
            self._own_queries = MAX_OWN_QUERIES
        elif state.properties.get(CHECK_ID) != self.check_id:
            self._note_departure(state)
            self._namesake_proven = self._clock()

    async def _state_of(
        self, client_id: str, address: str, *, check_id: str | None = None
    ) -> MemberState | None:
        try:
            return await self._instance.broker.member_state(
                self._group, client_id, address, check_id=check_id, timeout=QUERY_SECONDS
            )
        except RocketMQError as error:
            logger.debug("member_did_not_respond", client_id=client_id, reason=str(error))
            return None

    def _note_departure(self, state: MemberState) -> None:
        """Note departures before this member joined: a deployment may be under way."""
        text = state.properties.get(DEPARTED, "")
        if self._history is not None and text.isascii() and text[:9].isdigit():
            self._history.note_departure(self._clock() - int(text[:9]))

    def _has_namesake(self) -> bool:
        proven = self._namesake_proven
        return proven is not None and self._clock() - proven <= PROOF_SECONDS

    @property
    def check_id(self) -> str:
        """An id that distinguishes consumers with the same client id."""
        if self._id is None:
            self._id = secrets.token_hex(8)
        return self._id

    def on_own_id_queried(self, check_id: str) -> None:
        """Handle a query for this client id; another *check_id* proves a second client."""
        if check_id != self.check_id:
            self._namesake_proven = self._clock()
            self.wake()

    def describe(self, info: ConsumerRunningInfo, *, leaving: bool) -> ConsumerRunningInfo:
        """Return *info* with the properties that checks of other members read."""
        properties = {**info.properties, CHECK_ID: self.check_id}
        history = self._history
        seconds = None if history is None else history.seconds_since_departure(self._clock())
        if leaving or seconds is not None:
            properties[DEPARTED] = "0" if leaving else str(int(seconds or 0))
        return msgspec.structs.replace(info, properties=properties)


@dataclass(slots=True)
class _Peer:
    """The responses of another member."""

    responses: int = 0  # in a row that agreed
    silent: bool = False

    @property
    def is_open(self) -> bool:
        """Whether to query the member again."""
        return not self.silent and self.responses < ENOUGH_RESPONSES


def shared_settings(message_model: MessageModel, *, orderly: bool) -> dict[str, str]:
    """Return the properties of a member's running info that all members of a group share."""
    return {MODEL: message_model.value, ORDERLY: "true" if orderly else "false"}


def _queryable(connections: Iterable[ConnectionBody]) -> set[str]:
    """Return the clients that respond and have one connection, so that it is the live one."""
    times = Counter(each.client_id for each in connections)
    return {
        each.client_id
        for each in connections
        if each.language in QUERYABLE and times[each.client_id] == 1
    }


def differences(
    wanted: Mapping[str, Subscription], table: Mapping[str, SubscriptionData]
) -> list[SubscriptionsDiffer]:
    """Return the topics that differ between this member and the broker's table."""
    theirs = {topic: each for topic, each in table.items() if not _is_retry(topic)}
    return [
        SubscriptionsDiffer(
            topic=topic,
            ours=expression_text(ours.kind, ours.expression) if ours else None,
            theirs=expression_text(other.expression_type, other.sub_string) if other else None,
        )
        for topic in sorted(wanted.keys() | theirs.keys())
        if not _agree(ours := wanted.get(topic), other := theirs.get(topic))
    ]


def namesakes(client_id: str, addresses: list[str]) -> list[ClientIdNotUnique]:
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
