"""The name servers: which to ask, and where their list comes from."""

from __future__ import annotations

import random
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
from rocketmq_aio.model.address import parse_addresses
from rocketmq_aio.protocol.bodies import TopicRouteData, read_route
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.requests.client import GetRouteInfo
from rocketmq_aio.remoting.client import RemotingClient
from rocketmq_aio.remoting.response_errors import broker_error

logger = get_logger(__name__)

HEDGE_SECONDS: Final = 0.5  # a server silent for so long is suspect, and the next one asked too
SUSPECT_SECONDS: Final = 30.0  # how long "no such topic" does not wait for a suspect
ANSWERS: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
REFUSALS: Final = (NotSupportedError, AuthError, PermissionDeniedError)  # of the request or account


class NameServers:
    """Asks one name server, and the next one when it fails or is slow; who answered stays first.

    "No such topic" is believed when all servers that can be reached agree: one that has restarted
    knows a topic only when its brokers have registered again.
    """

    def __init__(self, config: ClientConfig, remoting: RemotingClient) -> None:
        self._config = config
        self._remoting = remoting
        self._addresses: tuple[str, ...] = ()  # who answered last is the first
        self._suspects: dict[str, float] = {}  # silent servers, and until when they are suspect

    @property
    def addresses(self) -> tuple[str, ...]:
        """The known name servers."""
        return self._addresses

    async def load(self) -> None:
        """Take the list from the settings or the address server.

        :raises ConfigError: there is none
        :raises NameServerUnavailableError: the address server did not answer
        """
        namesrv = self._config.namesrv
        if not namesrv:
            raise ConfigError(
                "namesrv", namesrv, "give namesrv=... or set ROCKETMQ_NAMESRV or NAMESRV_ADDR"
            )
        if namesrv.startswith("http://"):
            self._use(await self._listed(namesrv))
        else:
            self._use(parse_addresses(namesrv))

    async def refresh(self) -> None:
        """Ask the address server again; the list is kept when it does not answer."""
        namesrv = self._config.namesrv or ""
        if namesrv.startswith("http://"):
            try:
                self._use(await self._listed(namesrv))
            except NameServerUnavailableError as error:
                logger.warning("address_server_failed", reason=str(error))

    async def route(self, topic: str) -> TopicRouteData:
        """Return where *topic* is.

        :raises RouteNotFoundError: no name server that can be reached knows such a topic
        :raises NameServerUnavailableError: no name server answered
        """
        return _routes(topic, [await self.ask(_route_request(topic))])[0]

    async def routes(self, topic: str) -> list[TopicRouteData]:
        """Return where *topic* is, as each name server that can be reached says; errors as `route`.

        One that has just restarted knows some of the brokers only.
        """
        return _routes(topic, await self.ask_all(_route_request(topic)))

    def _use(self, addresses: tuple[str, ...]) -> None:
        if set(addresses) == set(self._addresses):
            return
        gone = set(self._addresses) - set(addresses)
        # Shuffled, so that the clients of a data center spread over the servers.
        self._addresses = tuple(random.sample(addresses, len(addresses)))
        for address in gone:
            self._suspects.pop(address, None)
        self._remoting.forget(gone)

    async def ask(self, header: RequestHeader) -> Command:
        """Return a success of one of them, or "no such topic" of all that can be reached.

        :raises NameServerUnavailableError: none answered so
        :raises BrokerError: none answered so, and one refuses the request or the account
        """
        return (await self._ask(header, every=False))[0]

    async def ask_all(self, header: RequestHeader) -> list[Command]:
        """Return what all that can be reached answer; they do not share what they know.

        :raises NameServerUnavailableError: none answered
        :raises BrokerError: none answered, and one refuses the request or the account
        """
        return await self._ask(header, every=True)

    async def _ask(self, header: RequestHeader, *, every: bool) -> list[Command]:
        poll = _Poll()

        async def ask(address: str) -> None:
            command = await self._ask_one(address, header, poll.causes)
            if command is not None:
                self._suspects.pop(address, None)
            poll.end(address, command)

        async with anyio.create_task_group() as tasks:
            for address in self._addresses:  # which a refresh may replace meanwhile
                if poll.unknown is None or not self._is_suspect(address):
                    poll.silent.add(address)
                    tasks.start_soon(ask, address)
                    if not every:
                        await self._wait(poll, HEDGE_SECONDS)
                if poll.found and not every:
                    break
            while self._may_learn_more(poll, every=every):
                await self._wait(poll, HEDGE_SECONDS if poll.is_answered else None)
            tasks.cancel_scope.cancel()
        return self._answers_of(poll)

    def _may_learn_more(self, poll: _Poll, *, every: bool) -> bool:
        if poll.found and not every:
            return False
        silent = poll.silent
        return not all(map(self._is_suspect, silent)) if poll.is_answered else bool(silent)

    async def _wait(self, poll: _Poll, seconds: float | None) -> None:
        """Wait for the next answer; servers that are silent for so long are suspect."""
        with anyio.move_on_after(seconds) as waited:
            await poll.changed.wait()
        if waited.cancelled_caught:
            until = monotonic() + SUSPECT_SECONDS
            self._suspects.update(dict.fromkeys(poll.silent, until))

    def _is_suspect(self, address: str) -> bool:
        return self._suspects.get(address, 0.0) > monotonic()

    def _answers_of(self, poll: _Poll) -> list[Command]:
        if answers := poll.found or ([poll.unknown] if poll.unknown is not None else []):
            self._prefer(answers[0][0])
            return [command for _, command in answers]
        for cause in poll.causes.values():
            if isinstance(cause, REFUSALS):
                raise cause
        raise NameServerUnavailableError(poll.causes)

    def _prefer(self, address: str) -> None:
        """Ask *address* first from now on, the others after it in the order they have."""
        if address != self._addresses[0] and address in self._addresses:
            at = self._addresses.index(address)
            self._addresses = self._addresses[at:] + self._addresses[:at]

    async def _ask_one(
        self, address: str, header: RequestHeader, causes: dict[str, BaseException]
    ) -> Command | None:
        try:
            command = await self._remoting.request(address, header)
        except RocketMQError as error:
            causes[address] = error
            return None
        if command.code in ANSWERS:
            return command
        cause: RocketMQError = broker_error(command, address)  # also "name server not ready"
        if isinstance(cause, NotSupportedError) and isinstance(header, GetRouteInfo):
            cause = NotConnectedError(address, "this is a broker, expected a name server")
        causes[address] = cause
        return None

    async def _listed(self, url: str) -> tuple[str, ...]:
        wanted = unit_url(url, self._config.unit_name)
        return await fetch_addresses(wanted, self._config.request_timeout_seconds)


def _route_request(topic: str) -> GetRouteInfo:
    return GetRouteInfo(topic=topic, accept_standard_json_only=True)


def _routes(topic: str, answers: list[Command]) -> list[TopicRouteData]:
    found = [read_route(each.body) for each in answers if each.code == ResponseCode.SUCCESS]
    if not found:
        raise RouteNotFoundError(topic, "the name servers know no such topic")
    return found


class _Poll:
    """What the name servers answered to one request so far.

    :ivar found: successes, the first one first
    :ivar unknown: the first "no such topic"
    :ivar silent: those that were asked and have neither answered nor failed
    """

    def __init__(self) -> None:
        self.found: list[tuple[str, Command]] = []
        self.unknown: tuple[str, Command] | None = None
        self.causes: dict[str, BaseException] = {}
        self.silent: set[str] = set()
        self.changed = anyio.Event()  # replaced by each answer

    @property
    def is_answered(self) -> bool:
        return bool(self.found) or self.unknown is not None

    def end(self, address: str, command: Command | None) -> None:
        """The server at *address* has answered, or failed."""
        self.silent.discard(address)
        if command is not None:
            if command.code == ResponseCode.SUCCESS:
                self.found.append((address, command))
            elif self.unknown is None:
                self.unknown = (address, command)
        changed, self.changed = self.changed, anyio.Event()
        changed.set()
