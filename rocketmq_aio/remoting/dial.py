"""Dialer: address mapping, name resolution, TCP connect or `open_socket`, and TLS handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from rocketmq_aio.config.client import ClientConfig, OpenSocket
from rocketmq_aio.config.functions import APPLICATION_ERRORS
from rocketmq_aio.errors import ConfigError, NotConnectedError, text_of
from rocketmq_aio.model.address import parse_address
from rocketmq_aio.remoting.background_tasks import call_isolated
from rocketmq_aio.remoting.connection import Connection
from rocketmq_aio.remoting.waiters import WaiterQueue

CLOSED_IN_HANDSHAKE: Final = "closed by the peer during the TLS handshake; it may not speak TLS"

LOOKUPS_AT_ONCE: Final = 4  # the executor of asyncio has 5 threads or more


def tls_context(authority: str | None = None) -> ssl.SSLContext:
    """Return a context that verifies certificates, and rejects versions before TLS 1.2.

    :param authority: file with the certificates to trust instead of the system's
    :raises OSError: *authority* cannot be read
    """
    context = ssl.create_default_context(cafile=authority)
    # Interpreters of some distributions leave it to OpenSSL and its configuration.
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)
    return context


class Dialer:
    """Opens connections by the settings of `ClientConfig`."""

    def __init__(self, config: ClientConfig) -> None:
        self._mapper = config.address_mapper
        self._open_socket = config.open_socket
        self._seconds = config.connect_timeout_seconds
        tls = config.tls
        self._ssl = tls_context() if tls is True else tls or None
        self._resolver = Resolver()

    async def dial(self, address: str, make: Callable[[], Connection]) -> Connection:
        """Return the connection that *make* creates, connected; tries all addresses of a host name.

        :raises OSError: the address is unreachable, or the TLS handshake failed
        :raises ValueError: the address is invalid for a socket
        :raises NotConnectedError: ``address_mapper`` or ``open_socket`` failed
        """
        host, port = parse_address(self._map(address))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._seconds
        if self._open_socket is not None:
            async with asyncio.timeout_at(deadline):
                opened = await _opened(self._open_socket, address, host, port)
                return await self._connect(host, make, sock=opened)
        async with asyncio.timeout_at(deadline):
            addresses = await self._resolver.resolve(host, port)
        for left in range(len(addresses), 0, -1):
            # Leaves time for the next addresses.
            until = loop.time() + (deadline - loop.time()) / left
            try:
                async with asyncio.timeout_at(until):
                    return await self._connect(host, make, host=addresses[-left], port=port)
            except OSError:
                if left == 1:
                    raise
        raise OSError(f"{host} has no address")

    async def _connect(
        self,
        name: str,
        make: Callable[[], Connection],
        **place: Any,  # noqa: ANN401 - host and port, or sock, as `create_connection` takes them
    ) -> Connection:
        connection = make()
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                ssl=self._ssl,
                server_hostname=name if self._ssl is not None else None,
                **place,
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
            reason = f"address_mapper raised {text_of(error)}"
            raise NotConnectedError(address, reason) from error
        if not isinstance(mapped, str):
            reason = f"address_mapper returned {mapped!r}, expected host:port"
            raise NotConnectedError(address, reason)
        return mapped


async def _opened(open_socket: OpenSocket, address: str, host: str, port: int) -> socket.socket:
    """Return the socket that the application's *open_socket* opens.

    :raises NotConnectedError: it failed
    """
    try:
        opened = await call_isolated(open_socket, host, port)
    except Exception as error:  # the application's code
        raise NotConnectedError(address, f"open_socket raised {text_of(error)}") from error
    reason = f"open_socket returned {opened!r}, expected a connected stream socket without TLS"
    if isinstance(opened, socket.socket):
        if opened.type == socket.SOCK_STREAM and not isinstance(opened, ssl.SSLSocket):
            return opened
        opened.close()
    raise NotConnectedError(address, reason)


class Resolver:
    """Looks up host names, up to `LOOKUPS_AT_ONCE` concurrently.

    A lookup cannot be cancelled: it keeps its thread of the event loop's executor, which the
    application uses too, until the system's resolver gives up.  So the callers for a name share
    its lookup, and others wait for their turn.
    """

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], asyncio.Future[list[Any]]] = {}  # that run
        self._waiters = WaiterQueue(on_cancelled=lambda *_: self._wake_next())

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the IP addresses of *host*, each once, in the order of the system's resolver.

        :raises OSError: it is unknown
        :raises ValueError: no host has such a name
        """
        with suppress(ValueError):
            return [str(ip_address(host))]
        key = host, port
        while (lookup := self._lookups.get(key)) is None:
            if len(self._lookups) < LOOKUPS_AT_ONCE:
                lookup = self._look_up(host, port)
                break
            await self._waiters.wait()
        self._wake_next()  # this caller may have been woken for a turn that it does not need
        await asyncio.wait([lookup])
        if lookup.cancelled():
            raise OSError(f"{host} cannot be resolved: the executor of the loop was shut down")
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in lookup.result()))

    def _look_up(self, host: str, port: int) -> asyncio.Future[list[Any]]:
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            lookup = asyncio.get_running_loop().run_in_executor(None, look_up)
        except RuntimeError as error:  # no thread can be started
            self._wake_next()
            raise OSError(f"{host} cannot be resolved: {error}") from error
        self._lookups[host, port] = lookup
        lookup.add_done_callback(partial(self._end, (host, port)))
        return lookup

    def _end(self, key: tuple[str, int], lookup: asyncio.Future[list[Any]]) -> None:
        del self._lookups[key]
        if not lookup.cancelled():
            lookup.exception()  # retrieved: all callers may have timed out
        self._wake_next()

    def _wake_next(self) -> None:
        if len(self._lookups) < LOOKUPS_AT_ONCE:
            self._waiters.wake_one()


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
