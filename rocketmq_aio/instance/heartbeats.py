"""Heartbeats: every broker of every route learns which groups this client belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import anyio
import msgspec

from rocketmq_aio.errors import BrokerError, RocketMQError
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.bodies import HeartbeatData
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.header import read_header
from rocketmq_aio.protocol.requests.client import Heartbeat, HeartbeatResponse
from rocketmq_aio.protocol.subscription import java_hash
from rocketmq_aio.remoting.client import RemotingClient
from rocketmq_aio.remoting.gather import gather_limited
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)


class Heartbeats:
    """Tells brokers about this client; every broker is served by itself, so none delays another.

    :param describe: what to say now; None when there is neither producer nor consumer
    :param addresses: whom to tell
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
        self._accepted: dict[str, int] = {}  # fingerprint that an address knows already
        self._v2: set[str] = set()
        self._turns: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._asked = 0  # counts the calls of `beat`
        self._told: dict[str, tuple[int, RocketMQError | None]] = {}
        self.broker_versions: dict[str, int] = {}

    async def keep_beating(self, interval_seconds: float) -> None:
        """Tell all brokers, for ever."""
        while True:
            await anyio.sleep(interval_seconds)
            await self.beat_all()

    async def beat_all(self, *, anew: bool = False) -> dict[str, RocketMQError]:
        """Tell all brokers now and return the failures; *anew* forgets what they know already."""
        if anew:
            self._accepted.clear()
        errors = (await gather_limited(self.beat, self._addresses())).results
        return {address: error for address, error in errors.items() if error is not None}

    async def beat(self, address: str) -> RocketMQError | None:
        """Tell one broker; a failure is logged and returned.

        One at a time, for brokers work on requests in any order: the older of two could win.  Who
        waited while a later one began is content with that.
        """
        self._asked += 1
        asked = self._asked
        async with self.turn(address):
            begun, error = self._told.get(address, (0, None))
            if begun < asked:
                begun = self._asked
                error = await self._beat(address)
                self._told[address] = begun, error
            return error

    async def version_of(self, address: str) -> int | None:
        """Return the version number of a broker; None while it does not answer."""
        if address not in self.broker_versions:
            await self.beat(address)
        return self.broker_versions.get(address)

    def turn(self, address: str) -> anyio.Lock:
        """Return what has to be held to tell a broker who is here, or that somebody left."""
        return self._turns[address]

    async def _beat(self, address: str) -> RocketMQError | None:
        data = self._describe()
        if data is None:
            return None
        try:
            await self._send(address, data)
        except RocketMQError as error:
            self.forget(address)
            logger.info("heartbeat_failed", address=address, reason=str(error))
            return error
        return None

    def forget(self, address: str) -> None:
        """A new connection knows nothing: the next heartbeat to it is a whole one."""
        self._accepted.pop(address, None)

    def retain(self, addresses: set[str]) -> None:
        """Forget what is known of every address but *addresses*."""
        tables = (self._accepted, self._told, self.broker_versions)
        gone = {address for table in tables for address in table} | self._v2 | set(self._turns)
        for address in gone - addresses:
            if self._turns[address].statistics().locked:
                continue  # a heartbeat is under way
            for table in (*tables, self._turns):
                table.pop(address, None)
            self._v2.discard(address)

    async def _send(self, address: str, data: HeartbeatData) -> None:
        fingerprint = _fingerprint(data) if self._short_form else 0
        data = msgspec.structs.replace(data, heartbeat_fingerprint=fingerprint)
        known = address in self._v2 and self._accepted.get(address) == fingerprint != 0
        short = known and self._remoting.is_connected(address)  # a new connection knows nothing
        body = msgspec.json.encode(_without_subscriptions(data) if short else data)
        command = await self._remoting.request(address, Heartbeat(), body)
        if command.code != ResponseCode.SUCCESS:
            raise broker_error(command, address)
        self.broker_versions[address] = command.version
        self._remember(address, fingerprint, read_header(command, HeartbeatResponse), short)

    def _remember(
        self, address: str, fingerprint: int, answer: HeartbeatResponse, short: bool
    ) -> None:
        if answer.supports_v2:
            self._v2.add(address)
        if short and answer.subscription_changed:
            self._accepted.pop(address, None)  # another member told something else: tell all again
        else:
            self._accepted[address] = fingerprint


def _fingerprint(data: HeartbeatData) -> int:
    """Return a number that is stable while groups and subscriptions are; never 0."""
    same = msgspec.structs.replace(
        data,
        client_id="",
        heartbeat_fingerprint=0,
        without_sub=False,
        consumer_data_set=[
            msgspec.structs.replace(
                consumer,
                subscription_data_set=[
                    msgspec.structs.replace(each, sub_version=0)
                    for each in consumer.subscription_data_set
                ],
            )
            for consumer in data.consumer_data_set
        ],
    )
    return java_hash(msgspec.json.encode(same).decode()) or 1


def _without_subscriptions(data: HeartbeatData) -> HeartbeatData:
    return msgspec.structs.replace(
        data,
        without_sub=True,
        consumer_data_set=[
            msgspec.structs.replace(consumer, subscription_data_set=[])
            for consumer in data.consumer_data_set
        ],
    )


def check_accepted(failures: dict[str, RocketMQError]) -> None:
    """Raise what a broker *said*; brokers that could not be reached are told later."""
    for error in failures.values():
        if isinstance(error, BrokerError):
            raise error
