"""Name servers: their list, and requests with failover and hedging."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from time import monotonic
from typing import Final

import anyio

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.errors import (
    AuthError,
    ConfigError,
    NameServerUnavailableError,
    NotConnectedError,
    NotSupportedError,
    PermissionDeniedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.address_server import fetch_addresses, unit_url
from rocketmq_aio.log import get_logger
from rocketmq_aio.model.address import is_url, parse_addresses
from rocketmq_aio.model.names import LMQ_PREFIX
from rocketmq_aio.protocol.bodies import QueueData, TopicRouteData, checked_route, read_route
from rocketmq_aio.protocol.codes import PERM_READ, PERM_WRITE, ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.fastjson import read_body
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.requests.admin import ClusterInfoBody, GetClusterInfo
from rocketmq_aio.protocol.requests.groups import GetRouteInfo
from rocketmq_aio.remoting.remoting_client import RemotingClient
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

HEDGE_SECONDS: Final = 0.5  # without a response: it is suspect, and others are tried too
LEAST_REFRESH_SECONDS: Final = 5.0  # between two requests to the address server
SUSPECT_SECONDS: Final = 30.0  # "no such topic" does not wait for suspects
AT_BROKERS: Final = "connect to the name servers of its brokers"  # the advice at a proxy
REGION: Final = "MSG_REGION"
LISTED_OR_NOT: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
# Of the request or the account: other servers would not help.
FINAL: Final = (NotSupportedError, AuthError, PermissionDeniedError)


class NameServers:
    """Sends requests to one name server, and to the next one when it fails or is slow.

    The server that answered last is preferred.  "No such topic" counts only if all reachable
    servers agree: a restarted one has no topic until the brokers have registered again.

    :ivar are_proxies: whether the latest route is from a 5.x proxy, to which all requests go then
    """

    def __init__(self, config: ClientConfig, remoting: RemotingClient) -> None:
        self._config = config
        self._remoting = remoting
        self._addresses: tuple[str, ...] = ()  # the preferred one first
        self._suspects: dict[str, float] = {}  # unresponsive servers, and until when
        self.are_proxies = False
        self._moved = asyncio.Event()  # perhaps: no server of the address server's list responded

    @property
    def addresses(self) -> tuple[str, ...]:
        """The known name servers."""
        return self._addresses

    async def load(self) -> None:
        """Read the list from the settings or the address server.

        :raises ConfigError: no name server is configured
        :raises NameServerUnavailableError: the address server did not answer
        """
        namesrv = self._config.namesrv
        if not namesrv:
            raise ConfigError(
                "namesrv", namesrv, "give namesrv=... or set ROCKETMQ_NAMESRV or NAMESRV_ADDR"
            )
        self._set_addresses(
            await self._fetch_list(namesrv) if is_url(namesrv) else parse_addresses(namesrv)
        )

    async def refresh(self) -> None:
        """Fetch the list from the address server again; keep the old one if it fails."""
        namesrv = self._config.namesrv or ""
        if is_url(namesrv):
            try:
                self._set_addresses(await self._fetch_list(namesrv))
            except NameServerUnavailableError as error:
                logger.warning("address_server_failed", reason=str(error))

    async def wait_until_due(self, interval_seconds: float) -> None:
        """Return when `refresh` is due: after the interval, earlier if no server responded."""
        pause = min(LEAST_REFRESH_SECONDS, interval_seconds)
        await anyio.sleep(pause)
        with anyio.move_on_after(interval_seconds - pause):
            await self._moved.wait()
        self._moved.clear()

    async def route(self, topic: str) -> TopicRouteData:
        """Return the route of *topic*.

        :raises RouteNotFoundError: no reachable name server has such a topic
        :raises NameServerUnavailableError: no name server responded
        """
        return (await self._routes(topic, every=False))[0]

    async def routes(self, topic: str) -> list[TopicRouteData]:
        """Return the route of *topic* from each reachable name server; errors as `route`.

        One that has just restarted may lack some of the brokers.
        """
        return await self._routes(topic, every=True)

    async def find_proxies(self, topic: str) -> bool:
        """Return `are_proxies` after a request for the route of *topic*, which need not exist."""
        with suppress(RocketMQError):
            await self.route(topic)
        return self.are_proxies

    def backoff_left(self) -> float:
        """Return for how many seconds every request will fail without an attempt."""
        return min(map(self._remoting.backoff_left, self._addresses), default=0.0)

    async def _routes(self, topic: str, *, every: bool) -> list[TopicRouteData]:
        if topic.startswith(LMQ_PREFIX):
            clusters = await self._request(GetClusterInfo(), every=every)
            return [light_route(topic, each) for each in clusters.responses]
        header = GetRouteInfo(topic=topic, accept_standard_json_only=True)
        poll = await self._request(header, every=every)
        if not poll.routes:
            raise RouteNotFoundError(topic, "the name servers know no such topic")
        return poll.routes

    def _set_addresses(self, addresses: tuple[str, ...]) -> None:
        if set(addresses) == set(self._addresses):
            return
        gone = set(self._addresses) - set(addresses)
        # Shuffled, to spread the clients over the servers.
        self._addresses = tuple(random.sample(addresses, len(addresses)))
        for address in gone:
            self._suspects.pop(address, None)
        self._remoting.forget(gone)

    async def request(self, header: RequestHeader) -> Command:
        """Return the first success, or "no such topic" if all reachable servers agree.

        :raises ClosedError: the client was closed during the request
        :raises NameServerUnavailableError: no usable response
        :raises BrokerError: no usable response, and one rejected the request or the account
        """
        return (await self._request(header, every=False)).responses[0]

    async def request_all(self, header: RequestHeader) -> list[Command]:
        """Return the responses of all reachable servers, which do not replicate to each other.

        Errors are those of `request`.
        """
        return (await self._request(header, every=True)).responses

    async def _request(self, header: RequestHeader, *, every: bool) -> _Poll:
        poll = _Poll()

        async def request(address: str) -> None:
            command = await self._request_one(address, header, poll)
            if command is not None:
                self._suspects.pop(address, None)
            poll.end(address, command)

        begun, before_wait = 0, 1
        async with anyio.create_task_group() as tasks:
            for address in self._addresses:  # a refresh may replace it meanwhile
                if poll.unknown is None or not self._is_suspect(address):
                    poll.pending.add(address)
                    tasks.start_soon(request, address)
                    begun += 1
                    if begun >= before_wait and not every:
                        await self._wait(poll, HEDGE_SECONDS)
                        # As many as are silent: the waits of a long list must not add up.
                        begun, before_wait = 0, len(poll.pending)
                if poll.successes:
                    break
            while self._should_wait(poll, every=every):
                await self._wait(poll, HEDGE_SECONDS if poll.has_response else None)
            tasks.cancel_scope.cancel()
        self._conclude(poll)
        return poll

    def _should_wait(self, poll: _Poll, *, every: bool) -> bool:
        if poll.successes and not every:
            return False
        pending = poll.pending
        return not all(map(self._is_suspect, pending)) if poll.has_response else bool(pending)

    async def _wait(self, poll: _Poll, seconds: float | None) -> None:
        """Wait for the next response; after *seconds*, pending servers become suspect."""
        with anyio.move_on_after(seconds) as waited:
            await poll.changed.wait()
        if waited.cancelled_caught:
            until = monotonic() + SUSPECT_SECONDS
            self._suspects.update(dict.fromkeys(poll.pending, until))

    def _is_suspect(self, address: str) -> bool:
        return self._suspects.get(address, 0.0) > monotonic()

    def _conclude(self, poll: _Poll) -> None:
        """Prefer the server that responded first, or raise what all failures amount to."""
        if poll.has_response:
            if poll.first != self._addresses[0] and poll.first in self._addresses:
                at = self._addresses.index(poll.first)  # the others keep their order
                self._addresses = self._addresses[at:] + self._addresses[:at]
            return
        for cause in poll.causes.values():
            if isinstance(cause, FINAL):
                raise cause
        self._remoting.check_open()
        if is_url(self._config.namesrv or ""):
            self._moved.set()
        raise NameServerUnavailableError(poll.causes)

    async def _request_one(
        self, address: str, header: RequestHeader, poll: _Poll
    ) -> Command | None:
        is_route = isinstance(header, GetRouteInfo)
        try:
            command = await self._remoting.request(address, header)
            if is_route and command.code in LISTED_OR_NOT:
                is_proxy = is_from_proxy(command)
                if command.code == ResponseCode.SUCCESS:
                    poll.routes.append(read_route(command.body))
                self.are_proxies = is_proxy
        except RocketMQError as error:
            poll.causes[address] = error
            return None
        if command.code in LISTED_OR_NOT:
            return command
        cause: RocketMQError = broker_error(command, address)  # also "name server not ready"
        if isinstance(cause, NotSupportedError) and is_route:
            cause = NotConnectedError(address, "this is a broker, expected a name server")
        poll.causes[address] = cause
        return None

    async def _fetch_list(self, url: str) -> tuple[str, ...]:
        wanted = unit_url(url, self._config.unit_name)
        return await fetch_addresses(wanted, self._config.request_timeout_seconds)


def is_from_proxy(command: Command) -> bool:
    """Whether a proxy answered a request for a route or for the members of a group.

    It adds its region to every response (`AbstractRemotingActivity` of 5.1 to 5.5); name servers
    add nothing, brokers add the region only to responses to sends and pulls.
    """
    return REGION in command.ext_fields()


def light_route(topic: str, cluster_info: Command) -> TopicRouteData:
    """Return a route of the light message queue *topic*: name servers have none.

    Any broker of the clusters may have such a queue, number 0 of a topic of its own.
    """
    brokers = list(read_body(cluster_info.body, ClusterInfoBody).broker_addr_table.values())
    if not brokers:
        raise RouteNotFoundError(topic, "the name servers know no brokers")
    queues = [
        QueueData(
            broker_name=broker.broker_name,
            read_queue_nums=1,
            write_queue_nums=1,
            perm=PERM_READ | PERM_WRITE,
        )
        for broker in brokers
    ]
    return checked_route(TopicRouteData(queue_datas=queues, broker_datas=brokers))


class _Poll:
    """The responses of name servers to one request so far.

    :ivar successes: in order of arrival
    :ivar routes: of the successes, if the request was for a route
    :ivar unknown: the first "no such topic"
    :ivar pending: servers without a response or failure yet
    """

    def __init__(self) -> None:
        self.successes: list[tuple[str, Command]] = []
        self.routes: list[TopicRouteData] = []
        self.unknown: tuple[str, Command] | None = None
        self.causes: dict[str, BaseException] = {}
        self.pending: set[str] = set()
        self.changed = anyio.Event()  # replaced by each response

    @property
    def has_response(self) -> bool:
        return bool(self._answered)

    @property
    def responses(self) -> list[Command]:
        """The successes, else the first "no such topic"."""
        return [command for _, command in self._answered]

    @property
    def first(self) -> str:
        """The address of the first of `responses`."""
        return self._answered[0][0]

    @property
    def _answered(self) -> list[tuple[str, Command]]:
        return self.successes or ([] if self.unknown is None else [self.unknown])

    def end(self, address: str, command: Command | None) -> None:
        """Record the response of *address*; None if it failed."""
        self.pending.discard(address)
        if command is not None:
            if command.code == ResponseCode.SUCCESS:
                self.successes.append((address, command))
            elif self.unknown is None:
                self.unknown = (address, command)
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
