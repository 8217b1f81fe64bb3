"""The name servers: which to ask, and where their list comes from."""

from __future__ import annotations

import random
from typing import Final

import anyio

from rocketmq_aio.address import parse_addresses
from rocketmq_aio.config import ClientConfig
from rocketmq_aio.errors import (
    ConfigError,
    NameServerUnavailableError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketmq_aio.instance.address_server import fetch_addresses, unit_url
from rocketmq_aio.log import get_logger
from rocketmq_aio.protocol.bodies import TopicRouteData, read_route
from rocketmq_aio.protocol.codes import ResponseCode
from rocketmq_aio.protocol.command import Command
from rocketmq_aio.protocol.header import RequestHeader
from rocketmq_aio.protocol.requests.client import GetRouteInfo
from rocketmq_aio.remoting.client import RemotingClient
from rocketmq_aio.remoting.refusals import refusal

logger = get_logger(__name__)

HEDGE_SECONDS: Final = 0.5  # a server silent for so long is doubted, and the next one asked too
ANSWERS: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)


class NameServers:
    """Asks one name server, and the next when it fails or hesitates; who answered stays first."""

    def __init__(self, config: ClientConfig, remoting: RemotingClient) -> None:
        self._config = config
        self._remoting = remoting
        self._addresses: tuple[str, ...] = ()  # who answered last is the first

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

        :raises RouteNotFoundError: the name server knows no such topic
        :raises NameServerUnavailableError: no name server answered
        """
        header = GetRouteInfo(topic=topic, accept_standard_json_only=True)
        command = await self.ask(header)
        if command.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFoundError(topic, "the name server knows no such topic")
        return read_route(command.body)

    def _use(self, addresses: tuple[str, ...]) -> None:
        if set(addresses) == set(self._addresses):
            return
        gone = set(self._addresses) - set(addresses)
        # Shuffled, so that the clients of a data center spread over the servers.
        self._addresses = tuple(random.sample(addresses, len(addresses)))
        self._remoting.forget(gone)

    async def ask(self, header: RequestHeader) -> Command:
        """Return the answer of one of them, success or "no such topic".

        :raises NameServerUnavailableError: none answered so
        """
        causes: dict[str, BaseException] = {}
        answers: list[tuple[str, Command]] = []
        addresses = self._addresses  # which a refresh may replace meanwhile

        async def ask(address: str, ended: anyio.Event) -> None:
            command = await self._ask_one(address, header, causes)
            if command is not None:
                answers.append((address, command))
                tasks.cancel_scope.cancel()
            ended.set()

        async with anyio.create_task_group() as tasks:
            for address in addresses:
                ended = anyio.Event()
                tasks.start_soon(ask, address, ended)
                with anyio.move_on_after(HEDGE_SECONDS if address != addresses[-1] else None):
                    await ended.wait()
        if not answers:
            raise NameServerUnavailableError(causes)
        answered, command = answers[0]
        self._prefer(answered)
        return command

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
        causes[address] = refusal(command, address)  # also "name server not ready"
        return None

    async def _listed(self, url: str) -> tuple[str, ...]:
        wanted = unit_url(url, self._config.unit_name)
        return await fetch_addresses(wanted, self._config.request_timeout_seconds)
