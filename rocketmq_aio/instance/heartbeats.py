"""Heartbeats: registers the groups of a client with every broker of its routes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import anyio
import msgspec
from msgspec.structs import replace

from rocketmq_aio.errors import BrokerError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.groups import Heartbeat, HeartbeatResponse
from rocketmq_aio.protocol.subscription import java_hash
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.remoting_client import RemotingClient

logger = get_logger(__name__)


class Heartbeats:
    """Sends heartbeats to brokers, concurrently: a slow broker does not delay the others.

    :param describe: returns the data to send; None when there is neither producer nor consumer
    :param addresses: returns the brokers to send to
    """

    def __init__(
        self,
        remoting: RemotingClient,
        *,
        describe: Callable[[], HeartbeatData | None],
        addresses: Callable[[], set[str]],
        short_form: bool,
    ) -> None:
        self._remoting = remoting
        self._describe = describe
        self._addresses = addresses
        self._short_form = short_form
        self._accepted: dict[str, int] = {}  # latest fingerprint that each address confirmed
        self._v2: set[str] = set()
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._calls = 0  # of `send`
        # By address: the number of calls when the last heartbeat began, and its error.
        self._last: dict[str, tuple[int, RocketMQError | None]] = {}
        self.broker_versions: dict[str, int] = {}

    async def run(self, interval_seconds: float) -> None:
        """Send heartbeats to all brokers until cancelled."""
        while True:
            await anyio.sleep(interval_seconds)
            await self.send_all()

    async def send_all(self, *, anew: bool = False) -> dict[str, RocketMQError]:
        """Send to all brokers now and return the failures; *anew* sends the full form."""
        if anew:
            self._accepted.clear()
        errors = (await gather_limited(self.send, self._addresses())).results
        return {address: error for address, error in errors.items() if error is not None}

    async def send(self, address: str) -> RocketMQError | None:
        """Send to one broker; log and return a failure.

        One at a time, since brokers process requests in any order: the older of two could win.
        A caller that waited while a later heartbeat began shares its outcome.
        """
        self._calls += 1
        call = self._calls
        async with self.lock(address):
            began_at, error = self._last.get(address, (0, None))
            if began_at < call:
                began_at = self._calls
                error = await self._try_send(address)
                self._last[address] = began_at, error
            return error

    async def version_of(self, address: str) -> int | None:
        """Return the version number of a broker; None while it does not respond."""
        if address not in self.broker_versions:
            await self.send(address)
        return self.broker_versions.get(address)

    def lock(self, address: str) -> anyio.Lock:
        """Return the lock to hold while registering with or unregistering from a broker."""
        return self._locks[address]

    async def _try_send(self, address: str) -> RocketMQError | None:
        data = self._describe()
        if data is None:
            return None
        try:
            await self._send_data(address, data)
        except RocketMQError as error:
            self.forget(address)
            logger.info("heartbeat_failed", address=address, reason=str(error))
            return error
        return None

    def forget(self, address: str) -> None:
        """Send the full form next: a new connection has no registration."""
        self._accepted.pop(address, None)

    def retain(self, addresses: set[str]) -> None:
        """Forget every address but *addresses*."""
        tables = (self._accepted, self._last, self.broker_versions)
        gone = {address for table in tables for address in table} | self._v2 | set(self._locks)
        for address in gone - addresses:
            if self._locks[address].statistics().locked:
                continue  # a heartbeat is in flight
            for table in (*tables, self._locks):
                table.pop(address, None)
            self._v2.discard(address)

    async def _send_data(self, address: str, data: HeartbeatData) -> None:
        fingerprint = _fingerprint(data) if self._short_form else 0
        data = replace(data, heartbeat_fingerprint=fingerprint)
        known = address in self._v2 and self._accepted.get(address) == fingerprint != 0
        short = known and self._remoting.is_connected(address)
        body = msgspec.json.encode(_without_subscriptions(data) if short else data)
        command = await self._remoting.request_checked(address, Heartbeat(), body)
        self.broker_versions[address] = command.version
        self._remember(address, fingerprint, read_header(command, HeartbeatResponse), short)

    def _remember(
        self, address: str, fingerprint: int, response: HeartbeatResponse, short: bool
    ) -> None:
        if response.supports_v2:
            self._v2.add(address)
        if short and response.subscription_changed:
            self._accepted.pop(address, None)  # by another member: send the full form
        else:
            self._accepted[address] = fingerprint


def _fingerprint(data: HeartbeatData) -> int:
    """Return a number that is stable while groups and subscriptions are; never 0."""
    subscriptions = [
        [replace(each, sub_version=0) for each in consumer.subscription_data_set]
        for consumer in data.consumer_data_set
    ]
    groups = (data.producer_data_set, _without_subscriptions(data).consumer_data_set)
    return java_hash(msgspec.json.encode((groups, subscriptions)).decode()) or 1


def _without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    consumers = [replace(each, subscription_data_set=[]) for each in data.consumer_data_set]
    return replace(data, without_sub=True, consumer_data_set=consumers)


def check_accepted(failures: dict[str, RocketMQError]) -> None:
    """Raise the error of a broker that rejected; unreachable ones get a heartbeat later."""
    for error in failures.values():
        if isinstance(error, BrokerError):
            raise error
