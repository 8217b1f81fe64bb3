"""Heartbeats: registers the groups of a client with every broker of its routes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

import anyio
import msgspec
from msgspec.structs import replace

from rocketmq_aio.errors import BrokerError, ClosedError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.groups import Heartbeat, HeartbeatResponse
from rocketmq_aio.remoting.background_tasks import BackgroundTasks
from rocketmq_aio.remoting.backoff import Backoff
from rocketmq_aio.remoting.remoting_client import RemotingClient

logger = get_logger(__name__)

_encode = msgspec.json.Encoder().encode

CHECK_SECONDS: Final = 1.0  # between checks for brokers that do not know this client
LONGEST_RETRY_SECONDS: Final = 5.0  # a restarted broker checks transactions soon


@dataclass(eq=False)
class _Next:
    """A heartbeat that waits for its turn."""

    groups: set[str | None] = field(default_factory=set)  # what it is about; None: all groups
    # Of those who wait for its outcome.
    callers: list[asyncio.Future[RocketMQError | None]] = field(default_factory=list)


class Heartbeats:
    """Sends heartbeats to brokers, concurrently: a slow broker does not delay the others.

    :param describe: returns the data of some groups, or of all if it is given None; None when
        there is neither producer nor consumer
    :param addresses: returns the brokers to send to
    """

    def __init__(
        self,
        remoting: RemotingClient,
        tasks: BackgroundTasks,
        *,
        describe: Callable[[Collection[str] | None], HeartbeatData | None],
        addresses: Callable[[], set[str]],
        short_form: bool,
    ) -> None:
        self._remoting = remoting
        self._tasks = tasks
        self._describe = describe
        self._addresses = addresses
        self._short_form = short_form
        self._accepted: dict[str, int] = {}  # latest fingerprint that each address confirmed
        self._v2: set[str] = set()
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._next: dict[str, _Next] = {}  # by address: the heartbeat that waits for its turn
        self._registered: set[str] = set()  # over the connection of the last heartbeat
        self._retries: dict[str, tuple[float, Backoff]] = {}  # failing addresses: not before
        self._sending: set[str] = set()  # by `run`
        self.broker_versions: dict[str, int] = {}

    async def run(self, interval_seconds: float) -> None:
        """Send heartbeats until cancelled: to all brokers every interval, to others sooner.

        Others are new in the routes, have lost their connection, or the last heartbeat failed:
        until they have received one they check no transactions with this client, and give its
        queues to other members.
        """
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while True:
            await anyio.sleep(min(interval_seconds, CHECK_SECONDS))
            now = loop.time()
            due = self._addresses()
            if now - sent_at >= interval_seconds:
                sent_at = now
            else:
                due = {address for address in due if self._is_missing(address, now)}
            for address in due - self._sending:
                self._start_regular(address)

    def _start_regular(self, address: str) -> None:
        self._sending.add(address)
        self.start(address).add_done_callback(lambda _: self._sending.discard(address))

    def _is_missing(self, address: str, now: float) -> bool:
        """Whether the broker does not know this client, and may be sent a heartbeat now."""
        if self._knows_all(address):
            return False
        not_before, _ = self._retries.get(address, (now, None))
        return not_before <= now and not self._remoting.backoff_left(address)

    def _knows_all(self, address: str) -> bool:
        """Whether the broker has accepted all groups over the current connection."""
        return address in self._registered and self._remoting.is_connected(address)

    async def send_all(self, group: str | None = None) -> dict[str, RocketMQError]:
        """Send to all brokers now and return the failures.

        :param group: the only one that has changed: what a heartbeat costs does not grow with the
            number of groups
        """
        started = {address: self.start(address, group) for address in self._addresses()}
        errors = {address: await ended for address, ended in started.items()}
        return {address: error for address, error in errors.items() if error is not None}

    def start(self, address: str, group: str | None = None) -> asyncio.Future[RocketMQError | None]:
        """Send to one broker in the background; the future has the failure, which is logged.

        One at a time, since brokers process requests in any order: the older of two could win.
        All calls until a heartbeat begins share it, so that a slow broker costs two tasks, and not
        one for each call.  It goes on when its callers are cancelled: what follows it, such as an
        unregistration, must not overtake it.

        :param group: leave other groups out, if the broker knows them
        """
        ended: asyncio.Future[RocketMQError | None] = asyncio.get_running_loop().create_future()
        waiting = self._next.get(address)
        if waiting is None:
            waiting = _Next()
            if not self._tasks.spawn(
                self._send_next, address, waiting, name=f"heartbeat-{address}"
            ):
                ended.set_result(ClosedError("the client is closed"))
                return ended
            self._next[address] = waiting
        waiting.groups.add(group)
        waiting.callers.append(ended)
        return ended

    async def _send_next(self, address: str, waiting: _Next) -> None:
        outcome: RocketMQError | None = ClosedError("the client was closed")
        try:
            async with self.lock(address):
                del self._next[address]  # later calls need another one
                groups = None
                if None not in waiting.groups and self._knows_all(address):
                    groups = [each for each in waiting.groups if each is not None]
                outcome = await self._try_send(address, groups)
        finally:
            if self._next.get(address) is waiting:
                del self._next[address]
            for ended in waiting.callers:
                if not ended.done():
                    ended.set_result(outcome)

    async def version_of(self, address: str) -> int | None:
        """Return the version number of a broker; None while it does not respond."""
        if address not in self.broker_versions:
            await self.start(address)
        return self.broker_versions.get(address)

    def registered(self) -> set[str]:
        """Return the brokers that know this client, also those that no route names any more."""
        return {address for address in self._registered if self._remoting.is_connected(address)}

    def lock(self, address: str) -> anyio.Lock:
        """Return the lock to hold while registering with or unregistering from a broker."""
        return self._locks[address]

    async def _try_send(self, address: str, groups: Collection[str] | None) -> RocketMQError | None:
        data = self._describe(groups)
        if data is None:
            return None
        try:
            if groups is None:
                await self._send_complete(address, data)
            else:
                await self._remoting.request_checked(address, Heartbeat(), _encode(data))
        except RocketMQError as error:
            self.forget(address)
            self._retry_later(address)
            logger.info("heartbeat_failed", address=address, reason=str(error))
            return error
        self._retries.pop(address, None)
        return None

    def _retry_later(self, address: str) -> None:
        _, backoff = self._retries.get(address, (0.0, None))
        backoff = backoff or Backoff(CHECK_SECONDS, LONGEST_RETRY_SECONDS)
        now = asyncio.get_running_loop().time()
        self._retries[address] = now + backoff.next_pause(), backoff

    def forget(self, address: str) -> None:
        """Send the full form next: a new connection has no registration."""
        self._accepted.pop(address, None)
        self._registered.discard(address)

    def retain(self, addresses: set[str]) -> None:
        """Forget every address but *addresses*."""
        tables = (self._accepted, self._retries, self.broker_versions)
        gone = {address for table in (*tables, self._locks) for address in table}
        for address in (gone | self._v2 | self._registered) - addresses:
            if self._locks[address].statistics().locked:
                continue  # a heartbeat is in flight
            for table in (*tables, self._locks):
                table.pop(address, None)
            self._v2.discard(address)
            self._registered.discard(address)

    async def _send_complete(self, address: str, data: HeartbeatData) -> None:
        fingerprint = _fingerprint(data) if self._short_form else 0
        data = replace(data, heartbeat_fingerprint=fingerprint)
        known = address in self._v2 and self._accepted.get(address) == fingerprint != 0
        short = known and self._remoting.is_connected(address)
        body = _encode(_without_subscriptions(data) if short else data)
        command = await self._remoting.request_checked(address, Heartbeat(), body)
        self.broker_versions[address] = command.version
        self._registered.add(address)
        response = read_header(command, HeartbeatResponse)
        if response.supports_v2:
            self._v2.add(address)
        if short and response.subscription_changed:
            self._accepted.pop(address, None)  # by another member: send the full form
        else:
            self._accepted[address] = fingerprint


def _fingerprint(data: HeartbeatData) -> int:
    """Return a number that is stable while groups and subscriptions are; positive, 32 bits."""
    subscriptions = [
        [replace(each, sub_version=0) for each in consumer.subscription_data_set]
        for consumer in data.consumer_data_set
    ]
    groups = (data.producer_data_set, _without_subscriptions(data).consumer_data_set)
    return crc32(_encode((groups, subscriptions))) & 0x7FFF_FFFF or 1


def _without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    consumers = [replace(each, subscription_data_set=[]) for each in data.consumer_data_set]
    return replace(data, without_sub=True, consumer_data_set=consumers)


def check_accepted(failures: dict[str, RocketMQError]) -> None:
    """Raise the error of a broker that rejected; unreachable ones get a heartbeat later."""
    for error in failures.values():
        if isinstance(error, BrokerError):
            raise error
