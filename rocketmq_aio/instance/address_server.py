"""Address server: fetches the list of name servers from a web page.

A GET of HTTP/1.0 on the event loop, which can be cancelled and has one deadline; the client of the
standard library needs a thread, which has neither.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

from rocketmq_aio.errors import NameServerUnavailableError, NotConnectedError
from rocketmq_aio.model.address import parse_addresses

MAX_PAGE_BYTES: Final = 64 * 1024
MAX_ADDRESSES: Final = 256  # a request may connect to each of them
DEFAULT_PORT: Final = 80
LENGTH: Final = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: *([0-9]{1,9})\r\n")


async def fetch_addresses(url: str, seconds: float) -> tuple[str, ...]:
    """Return the addresses in the first line of the page at *url*.

    :raises NameServerUnavailableError: no such list within *seconds*
    """
    try:
        async with asyncio.timeout(seconds):
            page = await _get(urlsplit(url))
        addresses = parse_addresses(_body(page).partition("\n")[0])
        if len(addresses) > MAX_ADDRESSES:
            raise ValueError(f"it lists {len(addresses)} name servers, above {MAX_ADDRESSES}")
        return addresses
    except TimeoutError:
        raise _unavailable(url, f"no response within {seconds:.3g} s") from None
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no thread for the resolver
        raise _unavailable(url, str(error)) from error


def _unavailable(url: str, reason: str) -> NameServerUnavailableError:
    host = url.removeprefix("http://").partition("/")[0]  # of any text
    advice = f"http:// means a web page that lists name servers; for one, give {host}"
    return NameServerUnavailableError({url: NotConnectedError(url, f"{reason} ({advice})")})


def unit_url(url: str, unit: str | None) -> str:
    """Return the URL for the name servers of *unit*, as Java clients build it."""
    if unit is None:
        return url
    page, _, query = url.partition("?")
    return f"{page}-{quote(unit, safe='')}?nofix=1{'&' + query if query else ''}"


async def _get(url: SplitResult) -> bytes:
    reader, writer = await asyncio.open_connection(url.hostname, url.port or DEFAULT_PORT)
    try:
        path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        head = f"GET {path} HTTP/1.0\r\nHost: {url.netloc}\r\nAccept: text/plain\r\n\r\n"
        writer.write(head.encode("ascii"))
        page = b""
        while chunk := await reader.read(MAX_PAGE_BYTES):
            page += chunk
            if len(page) > MAX_PAGE_BYTES:
                raise ValueError(f"the response is longer than {MAX_PAGE_BYTES} bytes")
        return page
    finally:
        writer.transport.abort()  # all of it has been read, or the call was cancelled


def _body(page: bytes) -> str:
    head, separator, body = page.partition(b"\r\n\r\n")
    version, _, status = head.partition(b"\r\n")[0].decode("ascii", "replace").partition(" ")
    if not version.startswith("HTTP/"):
        raise ValueError("the response is not HTTP")
    if not status.startswith("200"):
        raise ValueError(f"the response is {status[:100]!r}")
    length = LENGTH.search(head + separator)
    if length is not None and int(length[1]) > len(body):  # its last address may lack a digit
        raise ValueError("the response is cut short")
    return body.decode("ascii", "replace").strip()
