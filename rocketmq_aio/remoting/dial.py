"""Dialer: address mapping, name resolution, TCP connect and TLS handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final, TypeAlias

from rocketmq_aio.config.client import ClientConfig
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.errors import ConfigError, NotConnectedError
from rocketmq_aio.model.address import parse_address
from rocketmq_aio.remoting.connection import Connection

CLOSED_IN_HANDSHAKE: Final = "closed by the peer during the TLS handshake; it may not speak TLS"

Lookups: TypeAlias = dict[tuple[str, int], "asyncio.Future[list[Any]]"]
"""Running lookups by host name and port."""


class Dialer:
    """Opens connections by the settings of `ClientConfig`."""

    def __init__(self, config: ClientConfig) -> None:
        self._mapper = config.address_mapper
        self._seconds = config.connect_timeout_seconds
        tls = config.tls
        self._ssl = ssl.create_default_context() if tls is True else tls or None
        self._lookups: Lookups = {}

    async def dial(self, address: str, make: Callable[[], Connection]) -> Connection:
        """Return the connection that *make* creates, connected; tries all addresses of a host name.

        :raises OSError: the address is unreachable, or the TLS handshake failed
        :raises ValueError: the address is invalid for a socket
        :raises NotConnectedError: ``address_mapper`` failed
        """
        host, port = parse_address(self._map(address))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        async with asyncio.timeout_at(deadline):
            addresses = await resolve(host, port, self._lookups)
        for left in range(len(addresses), 0, -1):
            # Leaves time for the next addresses.
            until = loop.time() + (deadline - loop.time()) / left
            try:
                async with asyncio.timeout_at(until):
                    return await self._dial_one(host, addresses[-left], port, make)
            except OSError:
                if left == 1:
                    raise
        raise OSError(f"{host} has no address")

    async def _dial_one(
        self, host: str, ip: str, port: int, make: Callable[[], Connection]
    ) -> Connection:
        connection = make()
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                ip,
                port,
                ssl=self._ssl,
                server_hostname=host if self._ssl is not None else None,
            )
        except ConnectionResetError as error:
            if self._ssl is None:
                raise
            raise ConnectionResetError(CLOSED_IN_HANDSHAKE) from error
        return connection

    def _map(self, address: str) -> str:
        """Apply ``address_mapper``; its exception must not stop the client."""
        if self._mapper is None:
            return address
        try:
            mapped = self._mapper(address)
        except APPLICATION_ERRORS as error:
            reason = f"address_mapper raised {type(error).__name__}: {error}"
            raise NotConnectedError(address, reason) from error
        if not isinstance(mapped, str):
            reason = f"address_mapper returned {mapped!r}, expected host:port"
            raise NotConnectedError(address, reason)
        return mapped


async def resolve(host: str, port: int, lookups: Lookups) -> list[str]:
    """Return the IP addresses of *host*, each once, in the order of the resolver.

    A lookup cannot be cancelled: it keeps its thread of the event loop's executor, which the
    application uses too, until the resolver gives up.  So later calls await the one in *lookups*.
    """
    with suppress(ValueError):
        return [str(ip_address(host))]
    key = host, port
    if (lookup := lookups.get(key)) is None:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            lookup = asyncio.get_running_loop().run_in_executor(None, look_up)
        except RuntimeError as error:  # no thread can be started
            raise OSError(f"{host} cannot be resolved: {error}") from error
        lookups[key] = lookup
        lookup.add_done_callback(partial(_end_lookup, lookups, key))
    infos = await asyncio.shield(lookup)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in infos))


def _end_lookup(lookups: Lookups, key: tuple[str, int], lookup: asyncio.Future[list[Any]]) -> None:
    del lookups[key]
    if not lookup.cancelled():
        lookup.exception()  # retrieved: all callers may have timed out


def failure_reason(error: BaseException) -> str:
    """Return the reason for an error of `Dialer.dial`."""
    if isinstance(error, TimeoutError):
        return "no connection within the connect timeout"
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {error}"
    if isinstance(error, NotConnectedError):
        return error.reason
    if isinstance(error, ConfigError):
        return str(error)
    return f"cannot connect: {error}"
