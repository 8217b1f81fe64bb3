"""HTTP endpoint that lists name servers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from rocketmq_aio.embedded.server import HOST


class FakeAddressServer:
    """Responds to every GET with a list of name servers, like RocketMQ's discovery endpoint."""

    def __init__(self, addresses: str) -> None:
        self.addresses = addresses
        self.status = "200 OK"
        self.requests: list[str] = []  # request lines
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/rocketmq/nsaddr"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, HOST)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(EOFError, ConnectionError):  # the client closed the connection
                await self._answer(reader, writer)
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.split(b"\r\n", 1)[0].decode())
        body = self.addresses.encode()
        writer.write(
            f"HTTP/1.1 {self.status}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()
