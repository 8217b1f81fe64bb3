"""Address server: the list of name servers from a web page."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NoReturn

import pytest

from rocketmq_aio.errors import NameServerUnavailableError
from rocketmq_aio.instance import address_server
from rocketmq_aio.instance.address_server import fetch_addresses
from tests.fakes.address_server import FakeAddressServer


def test_a_resolver_without_threads_makes_the_address_server_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async def fetch() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            with pytest.raises(NameServerUnavailableError, match="can't start new thread"):
                await fetch_addresses("http://localhost:1/rocketmq/nsaddr", 10)

    # Not on uvloop, which resolves in threads of its own.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(fetch())


@asynccontextmanager
async def serving(answer: bytes, *, endless: bool = False) -> AsyncIterator[str]:
    """A server that answers every connection with *answer*; its URL."""

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        try:
            while endless:
                writer.write(b"x" * 65536)
                await writer.drain()
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(accepted, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/rocketmq/nsaddr"
    finally:
        server.close()


PAGE = b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n"


async def test_an_answer_without_end_is_rejected_at_the_limit() -> None:
    async with serving(PAGE + b"\r\n", endless=True) as url:
        with pytest.raises(NameServerUnavailableError, match="longer than 65536 bytes"):
            await fetch_addresses(url, 30)


@pytest.mark.parametrize("header", [b"Content-Length: 27\r\n", b"content-length:27\r\n"])
async def test_an_answer_that_is_cut_short_is_rejected(header: bytes) -> None:
    async with serving(PAGE + header + b"\r\n10.0.0.1:9876;10.0.0.2:98") as url:
        with pytest.raises(NameServerUnavailableError, match="cut short"):
            await fetch_addresses(url, 30)


async def test_a_list_of_too_many_name_servers_is_rejected() -> None:
    most = address_server.MAX_ADDRESSES
    listed = [f"10.0.{number // 256}.{number % 256}:9876" for number in range(most + 1)]
    async with FakeAddressServer(";".join(listed)) as server:
        with pytest.raises(NameServerUnavailableError, match=f"{most + 1} name servers"):
            await fetch_addresses(server.url, 30)
        server.addresses = ";".join(listed[:most])

        assert await fetch_addresses(server.url, 30) == tuple(listed[:most])


async def test_a_redirect_is_not_followed() -> None:
    async with FakeAddressServer("10.0.0.1:9876") as other:
        moved = f"HTTP/1.0 302 Found\r\nLocation: {other.url}\r\n\r\n".encode()
        async with serving(moved) as url:
            with pytest.raises(NameServerUnavailableError, match="302 Found"):
                await fetch_addresses(url, 30)

        assert other.requests == []


@pytest.mark.parametrize("url", ["http://[::1/rocketmq", "http://h:99999/"])
async def test_a_url_that_is_invalid_counts_as_an_unavailable_server(url: str) -> None:
    with pytest.raises(NameServerUnavailableError, match="web page that lists name servers"):
        await fetch_addresses(url, 10)
